"""Inside the process that runs a task's test code. The program is elsewhere; here are only stubs that call
it.

Frames on the result channel: P passed, F an assertion failed, R another exception, E the program ended, T it
tampered.
"""

from __future__ import annotations

import ast
import builtins
import os

from ascent.sandbox.inside.child import describe, send_frame
from ascent.sandbox.inside.rpc import Client, EndedError, TamperedError
from ascent.sandbox.inside.values import decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn


def run_tests(tests_fd: int, result_fd: int, socket_fd: int) -> NoReturn:
    """Run each test in a namespace of its own, in order; one frame each."""
    with open(tests_fd, "rb") as file:
        tests = decode(file.read())
    client = Client(socket_fd)
    for index, (setup, code) in enumerate(tests):
        kind, text = _run(client, setup + "\n" + code)
        send_frame(result_fd, kind, index, text)
    os._exit(0)


def _run(client: Client, code: str) -> tuple[bytes, str]:
    try:
        tree = ast.parse(code)
        names: dict[str, Any] = {"__name__": "test"}
        names.update(client.names(_free_names(tree)))
        exec(compile(tree, "<test>", "exec", dont_inherit=True), names)  # noqa: S102 - the task's own test code
    except TamperedError as error:
        return b"T", describe(error)
    except EndedError:
        return b"E", ""
    except AssertionError as error:
        return (b"T" if client.tampered else b"E" if client.ended else b"F"), describe(error)
    except BaseException as error:  # noqa: BLE001
        return b"R", describe(error)
    # A test that catches everything doesn't turn the end of the program, or a broken channel, into a pass.
    return (b"T" if client.tampered else b"E" if client.ended else b"P"), ""


def _free_names(tree: ast.Module) -> list[str]:
    """Names that the test reads and doesn't make itself. A builtin's name counts only where the test hands
    it to its `check`, so that a program can't replace `abs` or `len` in a test."""
    read: set[str] = set()
    made: set[str] = set()
    entry: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check":
            entry |= {argument.id for argument in node.args if isinstance(argument, ast.Name)}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            made.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            made |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return sorted(name for name in read - made if name in entry or not hasattr(builtins, name))
