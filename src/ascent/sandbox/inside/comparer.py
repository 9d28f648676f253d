"""The process that decodes what programs returned and compares it with what was expected. It runs no
program, opens no file, and works under a limit of its own: bytes made to be slow to decode end it, and its
end is a fail for their program.

Request: {"kind": "values", "checks": encoded lists of checks, one a test, "seconds"} with the channel's
frames as raw bytes, {"kind": "tests", "count", "status", "seconds"} with a tester's frames (and the
program's own in `status`), or {"kind": "output", "expected", "tolerance", "status", "seconds"} with a program's
standard output. Reply: {"answers": [[outcome, error or null], ...], "compiled", "loaded", "ended": answer or null}.

An example: two tests, f(1) == 2 and f(2) == 3, of a program whose f returns its argument plus one, and which writes a
frame of its own into the channel. What the channel holds, each a frame (kind, index, encoded payload):

    C 0         it compiled
    L 0         it was loaded; from here on the calls are made, in the order of the checks
    V 0 [2, ..] call 0 returned 2: it holds, test 0 has "passed"
    V 7 [3, ..] the program's own frame: index 1 was due, so what follows isn't trusted any more
    V 1 [3, ..] the true answer, which comes too late

Test 1 has no frame that counts: its outcome is "tampered". Had the program simply ended after call 0, it would be
"error, the program ended before answering". Values are compared here and nowhere else (`compare.holds`): the program's
own `__eq__` never runs, since what arrives are plain values.
"""

from __future__ import annotations

import _socket
import os
import resource
import signal
import sys

from ascent.sandbox.inside import confine, wire
from ascent.sandbox.inside.child import FRAME
from ascent.sandbox.inside.compare import holds
from ascent.sandbox.inside.compare_output import same_output
from ascent.sandbox.inside.values import MalformedError, decode

_MEMORY = 2 << 30
_NOT_ANSWERED = ("error", "the program ended before answering")
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

    Answer = tuple[str, str | None]


def main() -> NoReturn:
    """Serve the judge on the inherited socket until it closes."""
    sock = wire.open_socket(int(sys.argv[1]))
    config, _, _ = wire.receive(sock)
    confine.be_modest(config["nice"], config["cores"])
    confine.protect_slot()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    confine.Confinement(config, namespaced=False, namespace_reason="").seal()
    wire.send(sock, {"ready": True})
    try:
        while True:
            _serve(sock)
    except wire.ClosedError:
        os._exit(0)


def _serve(sock: _socket.socket) -> None:
    request, raw, _ = wire.receive(sock)
    signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # its signal's default action ends this process
    if request["kind"] == "output":
        answers = [_judge_output(bytes(raw), request["expected"], request["tolerance"])]
    elif request["kind"] == "tests":
        answers = _judge_tests(raw, request["count"])
    else:
        answers = _judge_values(raw, decode(request["checks"]))
    status = raw if request["kind"] == "values" else bytearray(request["status"].encode("latin-1"))
    reply = _progress(status)
    signal.setitimer(signal.ITIMER_PROF, 0)
    wire.send(sock, {"answers": answers, **reply})


def _progress(raw: bytearray) -> dict[str, object]:
    """How far a program came before its tests. The first frame of each kind counts: a program can only add
    later ones."""
    progress: dict[str, object] = {"compiled": False, "loaded": False, "ended": None}
    for kind, _, payload in _frames(raw):
        if kind == b"C":
            progress["compiled"] = True
        elif kind == b"L":
            progress["loaded"] = True
        elif kind in (b"S", b"E"):
            progress["ended"] = _describe(payload)
        if kind not in (b"B", b"C"):
            break
    return progress


def _describe(payload: bytes) -> Answer:
    try:
        return _raised(*decode(payload))
    except (MalformedError, TypeError, ValueError, IndexError):
        return "error", "the program ended in a way that can't be shown"


def _judge_output(raw: bytes, expected: str, tolerance: float | None) -> Answer:
    if same_output(raw.decode("utf-8", "replace"), expected, tolerance):
        return "passed", None
    return "failed", "wrong output"


def _judge_values(raw: bytearray, tests: list[list[Any]]) -> list[Answer]:
    """One answer per test: the checks of a test take the next frames in turn, the first frame per index
    counts."""
    frames: dict[int, tuple[bytes, bytes]] = {}
    tampered = False
    expected_index, wanted = 0, sum(map(len, tests))
    for kind, index, payload in _frames(raw):
        if kind not in b"VRM":
            continue
        if index != expected_index:
            tampered = True
            break
        frames[index] = (kind, payload)
        expected_index += 1
        if expected_index == wanted:
            break  # the program was stopped here; what it wrote meanwhile depends on who was faster
    answers: list[Answer] = []
    at = 0
    for checks in tests:
        answer: Answer = ("passed", None)
        for offset, check in enumerate(checks):
            answer = _judge_frame(frames.get(at + offset), check, tampered)
            if answer[0] != "passed":
                break
        answers.append(answer)
        at += len(checks)
    return answers


def _judge_tests(raw: bytearray, count: int) -> list[Answer]:
    """A tester's frames; what is missing did not pass."""
    found = {index: (kind, payload) for kind, index, payload in _frames(raw)}
    return [_judge_test(found.get(index)) for index in range(count)]


def _judge_test(frame: tuple[bytes, bytes] | None) -> Answer:
    if frame is None:
        return _NOT_ANSWERED
    kind, payload = frame
    if kind == b"P":
        return "passed", None
    if kind == b"E":
        return "error", "the program ended before the test did"
    names, message = decode(payload)
    if kind == b"T":
        return "tampered", f"the channel was interfered with: {message}"
    return ("failed", f"assertion failed {message}".rstrip()) if kind == b"F" else _raised(names, message)


def _frames(raw: bytearray) -> Iterator[tuple[bytes, int, bytes]]:
    at = 0
    while at + FRAME.size <= len(raw):
        kind, index, size = FRAME.unpack_from(raw, at)
        at += FRAME.size
        if at + size > len(raw):
            return
        yield kind, index, bytes(raw[at : at + size])
        at += size


def _judge_frame(frame: tuple[bytes, bytes] | None, check: Any, tampered: bool) -> Answer:
    if frame is None:
        return ("tampered", "answers that nobody asked for") if tampered else _NOT_ANSWERED
    kind, payload = frame
    if kind == b"M":
        return "error", f"the program does not define {check['function']}"
    try:
        if kind == b"R":
            return _raised(*decode(payload))
        value, args = decode(payload)
        if not holds(check, value):
            return "failed", f"{check['function']} returned {_excerpt(value)}"
        if check["after"] is not None and not holds(check["after"], args):
            return "failed", f"{check['function']} left its arguments as {_excerpt(args)}"
    except MalformedError as error:
        return "tampered", str(error)
    except (RecursionError, OverflowError, ValueError, TypeError, MemoryError) as error:
        return "failed", f"the returned value can't be compared: {type(error).__name__}"
    return "passed", None


def _raised(names: list[str], message: str) -> Answer:
    text = f"{names[0]}: {message}"[:500]
    if "MemoryError" in names:
        return "memory", text
    return ("forbidden" if "PermissionError" in names else "error"), text


def _excerpt(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:
        return "a number of very many digits"
    return text if len(text) <= 200 else text[:200] + "..."
