"""The judge's end of one slot: a supervisor that runs programs and a comparer that reads what they
returned."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ascent.host.open_files import own_shortage
from ascent.sandbox.base import remove_tree
from ascent.sandbox.errors import SlotError
from ascent.sandbox.inside import wire
from ascent.sandbox.interpreter import Interpreter

_START_SECONDS = 60.0
_GRACE_SECONDS, _PATIENCE = 15.0, 11.0  # a slot stretches the wall limit on a busy machine, tenfold at most
_COMPARE_SECONDS = 1.0
# Our own environment never reaches a slot. A fixed hash seed makes programs that print sets judged alike in every slot;
# a comparer gives memory back at once.
_ENVIRONMENT = {"LANG": "C.UTF-8", "PYTHONUTF8": "1"}
_FOR_PROGRAMS = {
    "PYTHONHASHSEED": "0",
    "MALLOC_ARENA_MAX": "2",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}
_FOR_COMPARING = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}


@dataclass(frozen=True, slots=True)
class SlotConfig:
    """How slots are built. `without` leaves layers out."""

    interpreter: Interpreter
    nice: int = 19
    cores: tuple[int, ...] = ()  # that its processes may use; empty: those of the thread that starts them
    without: frozenset[str] = frozenset()
    read_only: bool = False
    scratch_bytes: int = 64 << 20

    def message(self, scratch: str, uid: int | None) -> dict[str, object]:
        """The first message to a supervisor or comparer."""
        python = self.interpreter
        return {
            "nice": self.nice,
            "cores": list(self.cores),
            "without": sorted(self.without),
            "read_only": self.read_only,
            "read": list(python.read),
            "interpreter": list(python.probe),
            "path": list(python.path),
            "modules": list(python.modules),
            "scratch": scratch,
            "scratch_bytes": self.scratch_bytes,
            "uid": uid,
        }


@dataclass(frozen=True, slots=True)
class Ending:
    """How one job ended: see `inside/watch.py`. `channel`, `out`, `err` and `tests` are what came out,
    unread."""

    code: int | None
    signal: int | None
    reason: str | None
    cpu: float
    peak_bytes: int
    wall: float
    began: bool
    answered: int
    channel: bytes = b""
    out: bytes = b""
    err: bytes = b""
    tests: bytes = b""
    tests_answered: int = 0
    killed: bool = False
    tester_status: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the comparer says: one (outcome, error) a test, and how far the program came before its tests."""

    answers: list[tuple[str, str | None]]
    compiled: bool = True
    loaded: bool = True
    ended: tuple[str, str] | None = None


@dataclass(slots=True)
class _Process:
    """A started process, the socket to it, and its error stream."""

    popen: subprocess.Popen[bytes]
    sock: socket.socket
    errors: int
    report: dict[str, Any] = field(default_factory=dict)

    def end(self) -> int:
        """Its return code: minus the signal that ended it."""
        self.sock.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(0.2)  # it may be ending by itself, and how it ends says why
        self.popen.kill()
        code = self.popen.wait()
        os.close(self.errors)
        return code

    def last_words(self) -> str:
        size = os.fstat(self.errors).st_size
        return os.pread(self.errors, 2000, max(0, size - 2000)).decode("utf-8", "replace").strip()


class Slot:
    """Not for concurrent use: it belongs to the thread that started it, and the kernel ends its processes
    with that thread."""

    def __init__(self, config: SlotConfig, base: str, uid: int | None) -> None:
        self.config = config  # of the processes that are started next
        self._base, self._uid = base, uid
        self._scratch = ""
        self._supervisor: _Process | None = None
        self._comparer: _Process | None = None
        self.report: dict[str, Any] = {}

    def start(self) -> None:
        """Start both processes. Raises SlotError."""
        try:
            self._scratch = tempfile.mkdtemp(prefix="slot-", dir=self._base)
        except OSError as error:
            raise SlotError(f"a sandbox slot could not be made: {own_shortage(error) or error}") from error
        self._supervisor = self._launch("supervisor")
        self.report = self._supervisor.report
        self._comparer = self._launch("comparer")

    def _launch(self, module: str) -> _Process:
        try:
            process = self._spawn(module)
        except OSError as error:  # no more files, processes or memory for this process
            raise SlotError(f"a sandbox {module} could not start: {own_shortage(error) or error}") from error
        process.sock.settimeout(_START_SECONDS)
        try:
            wire.send(process.sock, self.config.message(self._scratch, self._uid))
            process.report, _, _ = wire.receive(process.sock)
        except wire.ClosedError as error:
            words = process.last_words()
            process.end()
            raise SlotError(f"a sandbox {module} could not start ({error}): {words or 'it said nothing'}") from error
        return process

    def _spawn(self, module: str) -> _Process:
        environment = _ENVIRONMENT | (_FOR_PROGRAMS if module == "supervisor" else _FOR_COMPARING)
        with contextlib.ExitStack() as unless_started:
            ours, theirs = socket.socketpair()
            unless_started.callback(ours.close)
            with theirs:
                errors = os.memfd_create("slot-errors", os.MFD_CLOEXEC)
                unless_started.callback(os.close, errors)
                popen = subprocess.Popen(
                    self.config.interpreter.command(module, theirs.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    pass_fds=(theirs.fileno(),),
                    env=environment,
                    cwd="/",
                )
            unless_started.pop_all()
        return _Process(popen, ours, errors)

    def close(self) -> None:
        """End both processes and remove the scratch."""
        for process in (self._supervisor, self._comparer):
            if process is not None:
                process.end()
        self._supervisor = self._comparer = None
        if self._scratch:
            remove_tree(self._scratch)

    def free_bytes(self) -> int:
        """Room that is left where slots have their directories, for all programs and for others."""
        room = os.statvfs(self._base)
        return room.f_bavail * room.f_frsize

    def interrupt(self) -> None:
        """From another thread: make whatever this slot waits for fail now."""
        for process in (self._supervisor, self._comparer):
            if process is not None:
                with contextlib.suppress(OSError):  # it is gone already
                    process.sock.shutdown(socket.SHUT_RDWR)

    def run(self, job: dict[str, Any], parts: Sequence[bytes], test_code: str | None = None) -> Ending:
        """Have the supervisor run one job. Raises SlotError."""
        process = self._supervisor
        if process is None:
            raise SlotError("the slot isn't running")
        process.sock.settimeout(_PATIENCE * job["wall"] + _GRACE_SECONDS)
        fds = () if test_code is None else (_in_memory(test_code),)
        try:
            wire.send(process.sock, job, *parts, fds=fds)
            header, raw, _ = wire.receive(process.sock)
        except wire.ClosedError as error:
            self._failed(process, f"the slot died or hung ({error})")
        finally:
            for fd in fds:
                os.close(fd)
        return _ending(header, bytes(raw))

    def _failed(self, process: _Process, what: str) -> NoReturn:
        words = process.last_words()
        raise SlotError(f"{what}: {words[-500:]}" if words else what)

    def compare(self, request: dict[str, Any], raw: bytes, count: int) -> Comparison:
        """Have the comparer judge. It dies of hostile bytes only; then every test of the request has failed.
        Raises SlotError when a new comparer can't be started."""
        for _ in range(2):
            process = self._comparer = self._comparer or self._launch("comparer")
            process.sock.settimeout(_COMPARE_SECONDS * 40)
            try:
                wire.send(process.sock, {**request, "seconds": _COMPARE_SECONDS}, raw)
                header, _, _ = wire.receive(process.sock)
                return _comparison(header)
            except wire.ClosedError:
                self._comparer = None
                if process.end() == -signal.SIGPROF:
                    break  # its own limit; any other end may be somebody else's doing, and is tried again
        return Comparison([("failed", "the returned values can't be compared in time")] * count)


def _comparison(header: dict[str, Any]) -> Comparison:
    ended = tuple(header["ended"]) if header["ended"] else None
    answers = [(outcome, error) for outcome, error in header["answers"]]
    return Comparison(answers, header["compiled"], header["loaded"], ended)


def _in_memory(text: str) -> int:
    fd = os.memfd_create("tests", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(text.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _ending(header: dict[str, Any], raw: bytes) -> Ending:
    pieces: dict[str, bytes] = {}
    at = 0
    for name in ("channel", "out", "err", "tests"):
        size = header.get(name, 0)
        pieces[name] = raw[at : at + size]
        at += size
    return Ending(
        code=header["code"],
        signal=header["signal"],
        reason=header["reason"],
        cpu=header["cpu"],
        peak_bytes=header["peak_bytes"],
        wall=header["wall"],
        began=header["began"],
        answered=header["answered"],
        tests_answered=header.get("tests_answered", 0),
        killed=header["killed"],
        tester_status=header["tester_status"],
        error=header.get("error"),
        **pieces,
    )
