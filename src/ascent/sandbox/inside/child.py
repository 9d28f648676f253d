"""Inside the process that runs a program. Everything that leaves it is a claim: values to be compared
elsewhere, never verdicts.

Frames on the channel: one byte of kind, index, length, payload. B began, C compiled, S not valid, L loaded,
E ended while loading, V a value, R raised, M not defined.
"""

from __future__ import annotations

import builtins
import os
import struct
import sys

from ascent.sandbox.inside import rpc
from ascent.sandbox.inside.values import decode, encode, opaque

FRAME = struct.Struct("<cII")
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any, NoReturn, TextIO

_exit, _write = os._exit, os.write


def _flush() -> None:
    """What the program printed so far, whatever it did to `sys.stdout`: its end won't be an orderly one."""
    for stream in _streams:
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001 - a program may have closed or wrecked it
            return


_streams: list[TextIO] = []


def send_frame(fd: int, kind: bytes, index: int = 0, text: str = "") -> None:
    """Write one frame wholly, after what was printed before it."""
    _flush()
    payload = text.encode("utf-8", "backslashreplace")
    data = memoryview(FRAME.pack(kind, index, len(payload)) + payload)
    while data:
        data = data[_write(fd, data) :]


def describe(error: BaseException) -> str:
    """JSON text of an exception's type names and message, whatever the exception does."""
    names = [kind.__name__ for kind in type(error).__mro__]
    try:
        message = str(error)[:500]
    except BaseException:  # noqa: BLE001 - a program's own __str__
        message = "(its message can't be shown)"
    return encode([names, message], opaque)


def _compile(source: bytes, channel: int) -> CodeType:
    send_frame(channel, b"B")
    try:
        code = compile(source, "<program>", "exec", dont_inherit=True)
    except BaseException as error:  # noqa: BLE001 - SyntaxError, ValueError, MemoryError, RecursionError, OverflowError...
        send_frame(channel, b"S", 0, describe(error))
        _exit(1)
    send_frame(channel, b"C")
    return code


def _module(name: str) -> dict[str, Any]:
    module = type(sys)(name)
    sys.modules[name] = module
    return module.__dict__


def _beside_builtins(names: dict[str, Any], prelude: bytes) -> None:
    """Run a task's prelude. Its names join the builtins that `names` sees, so that `names` itself holds only
    what the program defines, and the program's lines and `__future__` imports are its own. It runs before the
    program begins: whatever it raises is no fault of the program's."""
    if not prelude:
        return
    given: dict[str, Any] = {"__name__": names["__name__"]}
    exec(compile(prelude, "<prelude>", "exec", dont_inherit=True), given)  # noqa: S102 - the task's own code
    names["__builtins__"] = vars(builtins) | {name: given[name] for name in given if not name.startswith("__")}


def _load(prelude: bytes, source: bytes, channel: int) -> dict[str, Any]:
    names = _module("solution")
    _beside_builtins(names, prelude)
    code = _compile(source, channel)
    try:
        exec(code, names)  # noqa: S102 - running programs is what this process is for
    except BaseException as error:  # noqa: BLE001
        send_frame(channel, b"E", 0, describe(error))
        _exit(1)
    send_frame(channel, b"L")
    return names


def compile_only(source: bytes, channel: int) -> NoReturn:
    """Is it valid? Nothing of it runs."""
    _compile(source, channel)
    _exit(0)


def run_functions(prelude: bytes, source: bytes, calls: bytes, channel: int) -> NoReturn:
    """Call functions with given arguments; send back what they return."""
    requests = decode(calls)
    names = _load(prelude, source, channel)
    for index, (function, args, kwargs, wants_args) in enumerate(requests):
        target = _find(names, function)
        if target is None:
            send_frame(channel, b"M", index)
            continue
        try:
            value = target(*args, **kwargs)
            text = encode([value, args if wants_args else None], opaque)
        except BaseException as error:  # noqa: BLE001
            send_frame(channel, b"R", index, describe(error))
            continue
        send_frame(channel, b"V", index, text)
    _exit(0)


def _find(names: dict[str, Any], dotted: str) -> Callable[..., Any] | None:
    """`name`, or `Class.method` on a new instance."""
    first, *rest = dotted.split(".")
    try:
        target = names[first]
        for name in rest:
            target = getattr(target() if isinstance(target, type) else target, name)
    except BaseException:  # noqa: BLE001
        return None
    return target if callable(target) else None


def run_script(prelude: bytes, source: bytes, channel: int) -> NoReturn:
    """As `python program.py` would, to the end and with its exit code."""
    names = _module("__main__")
    _beside_builtins(names, prelude)
    code = _compile(source, channel)
    os.close(channel)
    status = 0
    try:
        exec(code, names)  # noqa: S102
    except SystemExit as error:
        status = _exit_status(error.code)
    except BaseException as error:  # noqa: BLE001
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    _exit(max(status, _finish()))


def _exit_status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def _finish() -> int:
    """What the interpreter does at its end: wait for threads, run exit functions, flush."""
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        if "atexit" in sys.modules:
            sys.modules["atexit"]._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:  # noqa: BLE001
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def serve_calls(prelude: bytes, source: bytes, channel: int, socket_fd: int) -> NoReturn:
    """Answer calls from the tester, which runs the task's test code in another process."""
    names = _load(prelude, source, channel)
    rpc.Server(socket_fd, names, describe, _flush).run()
    _exit(0)


def run_in_process(prelude: bytes, source: bytes, tests: bytes, channel: int) -> NoReturn:
    """Test code in the program's own process: what it reports can be forged. Only on the task's explicit
    request."""
    codes = decode(tests)
    names = _load(prelude, source, channel)
    for index, (setup, code) in enumerate(codes):
        try:
            exec(compile(setup + "\n" + code, "<test>", "exec", dont_inherit=True), names)  # noqa: S102
        except BaseException as error:  # noqa: BLE001
            send_frame(channel, b"R", index, describe(error))
            continue
        send_frame(channel, b"V", index, '["l", true, null]')
    _exit(0)


class _Quitter:
    """`exit()` and `quit()`, which come from `site` and which programs use."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Use {self.name}() or Ctrl-D (i.e. EOF) to exit"

    def __call__(self, code: object = None) -> NoReturn:
        raise SystemExit(code)


def prepare_streams() -> None:
    """In the slot, once: standard streams over descriptors 0, 1 and 2, for all children to come. Their kinds
    are looked at here, so the descriptors must be a file and two pipes meanwhile, as they will be in a
    child."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
    _streams[:] = [sys.stdout, sys.stderr]
    sys.argv[:] = ["program.py"]
    builtins.exit = _Quitter("exit")  # type: ignore[assignment]
    builtins.quit = _Quitter("quit")  # type: ignore[assignment]
