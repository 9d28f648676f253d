"""Inside the process that runs a task's test code. The program is elsewhere; here are only stubs that call
it.

Frames on the result channel: P passed, F an assertion failed, R another exception, E the program ended, T it
tampered.
"""

from __future__ import annotations

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
    for index, (code, names) in enumerate(tests):
        kind, text = _run(client, code, names)
        send_frame(result_fd, kind, index, text)
    os._exit(0)


def _run(client: Client, code: str, wanted: list[str]) -> tuple[bytes, str]:
    try:
        names: dict[str, Any] = {"__name__": "test"}
        names.update(client.names(wanted))
        exec(compile(code, "<test>", "exec", dont_inherit=True), names)  # noqa: S102 - the task's own test code
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
