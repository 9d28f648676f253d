"""Watches the children of one job until they end or reach a limit, then leaves nothing of them behind."""

from __future__ import annotations

import _socket
import contextlib
import mmap
import os
import select
import time

from ascent.sandbox.inside import confine, scratch, wire
from ascent.sandbox.inside.child import FRAME

_TICK = 0.05
_FIRST_BYTES = 1 << 15
_SIGKILL = 9  # a plain number: conversions of the `signal` module take longer than the call
_PATIENCE = 10  # times the wall limit, however busy the machine is
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

PROGRAM_ANSWERS, TESTER_ANSWERS = b"VRM", b"PFRTE"


class Sink:
    """What comes out of one pipe, up to a size. What is beyond is dropped, or with `strict` ends the program.

    With `frames`, counts the answers in the stream without looking into them.
    """

    def __init__(
        self, size: int, strict: bool = False, frames: int | None = None, answers: bytes = PROGRAM_ANSWERS
    ) -> None:
        self.fd = -1
        self.used = 0
        self.overflowed = False
        self.began = False
        self.answered = 0
        self.answered_at = 0.0
        self._strict, self._wanted, self._answers = strict, frames, answers
        self._size = size
        self._buffer: bytearray | mmap.mmap = bytearray(min(size, _FIRST_BYTES))
        self._parsed = 0

    def read(self) -> bool:
        """Take what is there; False at the end of the stream. Raises BlockingIOError when there is
        nothing."""
        if self.used == len(self._buffer) < self._size:
            self._grow()
        view = memoryview(self._buffer)[self.used :]
        if not view:
            data = os.read(self.fd, 65536)
            self.overflowed |= bool(data)
            return bool(data)
        got = os.readv(self.fd, [view])
        self.used += got
        self._count()
        return got > 0

    def _grow(self) -> None:
        """Most programs say little, and fresh memory costs more than anything else here. What one that says
        much needs is given back to the kernel afterwards."""
        old = self._buffer
        self._buffer = mmap.mmap(-1, self._size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._buffer[: self.used] = bytes(old)
        old[:] = bytes(len(old))

    def _count(self) -> None:
        while self._parsed + FRAME.size <= self.used:
            kind, _, size = FRAME.unpack_from(self._buffer, self._parsed)
            if self._parsed + FRAME.size + size > self.used:
                return
            self._parsed += FRAME.size + size
            self.began = True
            if kind in self._answers or kind == b"L":
                self.answered += kind != b"L"
                self.answered_at = time.monotonic()

    @property
    def complete(self) -> bool:
        """All answers that were asked for are there."""
        return self._wanted is not None and self.answered >= self._wanted

    @property
    def too_much(self) -> bool:
        """The program printed more than it may."""
        return self._strict and self.overflowed

    def data(self) -> memoryview:
        """What was read."""
        return memoryview(self._buffer)[: self.used]

    def wipe(self) -> None:
        """Forget it: memory of a slot is inherited by the next program. Nothing may hold `data` any more."""
        if isinstance(self._buffer, mmap.mmap):
            self._buffer.close()
        else:
            self._buffer[:] = bytes(len(self._buffer))
        self.close()

    def close(self) -> None:
        """Close the pipe."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Watched:
    """A child that is to be reaped."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.status: int | None = None
        self.cpu = 0.0
        self.peak_bytes = 0
        self._waited = 0.0

    def cpu_now(self) -> float:
        """CPU seconds so far, of all its threads."""
        return self.cpu if self.status is not None else time.clock_gettime((~self.pid << 3) | 2)

    def threads(self) -> int:
        """How many it has."""
        with open(f"/proc/{self.pid}/stat", "rb") as file:
            return int(file.read().rsplit(b")", 1)[1].split()[17])

    def waited(self) -> float:
        """Seconds that it was ready to run and had to wait for a processor, up to now."""
        if self.status is None:
            with contextlib.suppress(OSError), open(f"/proc/{self.pid}/schedstat", "rb") as file:
                self._waited = int(file.read().split()[1]) / 1e9
        return self._waited

    def runnable(self) -> bool:
        """Whether any of its threads runs or waits for a processor."""
        if self.status is not None:
            return False
        folder = f"/proc/{self.pid}/task"
        for thread in os.listdir(folder):
            with contextlib.suppress(OSError), open(f"{folder}/{thread}/stat", "rb") as file:
                if file.read().rsplit(b")", 1)[1].split()[0] == b"R":
                    return True
        return False

    def kill(self) -> None:
        """It and its process group."""
        if self.status is None:
            os.kill(self.pid, _SIGKILL)
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it is not a group leader yet
                os.killpg(self.pid, _SIGKILL)

    def reap(self) -> None:
        """Wait for it."""
        _, self.status, usage = os.wait4(self.pid, 0)
        self.cpu = usage.ru_utime + usage.ru_stime
        self.peak_bytes = usage.ru_maxrss * 1024
        os.close(self.pidfd)


def watch(
    children: list[Watched],
    sinks: dict[str, Sink],
    job: Mapping[str, Any],
    control: _socket.socket,
    walls: confine.Confinement,
    scratch_path: str,
) -> dict[str, object]:
    """Returns how the job ended: {"code", "signal", "reason", "killed", "cpu", "peak_bytes",
    "tester_status"}. Raises wire.ClosedError."""
    state = _Watch(children, sinks, job, control, walls, scratch_path)
    try:
        reason = state.until_end()
    finally:
        killed = children[0].status is None
        for one in reversed(children):  # a tester first, or it would report the end of its program
            one.kill()
        for one in children:
            if one.status is None:
                one.reap()
        _reap_rest(walls)
    state.drain()
    candidate = children[0]
    exit_code = os.waitstatus_to_exitcode(candidate.status or 0)
    return {
        "code": exit_code if exit_code >= 0 else None,
        "signal": -exit_code if exit_code < 0 else None,
        "reason": reason,
        "wall": state.fair_seconds(),
        "killed": killed,
        "cpu": sum(one.cpu for one in children),
        "peak_bytes": max(one.peak_bytes for one in children),
        "tester_status": children[1].status if len(children) > 1 else None,
    }


class _Watch:
    def __init__(
        self,
        children: list[Watched],
        sinks: dict[str, Sink],
        job: Mapping[str, Any],
        control: _socket.socket,
        walls: confine.Confinement,
        scratch_path: str,
    ) -> None:
        self._children, self._sinks, self._job = children, sinks, job
        self._walls, self._scratch = walls, scratch_path
        self._started = time.monotonic()
        self._test_began = self._used_before = 0.0
        self._poll = select.poll()
        self._poll.register(control.fileno(), select.POLLIN | select.POLLHUP)
        self._control = control.fileno()
        self._readers = {sink.fd: sink for sink in sinks.values()}
        self._pidfds = {one.pidfd: one for one in children}
        for fd in [*self._readers, *self._pidfds]:
            self._poll.register(fd, select.POLLIN)

    def until_end(self) -> str | None:
        """Why it was ended, or None when it ended by itself or answered everything."""
        while True:
            ready = self._poll.poll(self._wait_ms())
            for fd, _ in ready:
                if fd == self._control:
                    raise wire.ClosedError("the judge is gone or speaks out of turn")
                if fd in self._readers:
                    self._read(fd)
            if any(sink.too_much for sink in self._sinks.values()):
                return "output"
            if any(sink.complete for sink in self._sinks.values()):
                return None
            if any(fd in self._pidfds for fd, _ in ready) and self._ended(ready):
                return None
            reason = self._limit_reached()
            if reason:
                return reason

    def _wait_ms(self) -> int:
        left = self._started + self._job["wall"] - time.monotonic()
        return max(10, int(1000 * min(_TICK, left) + 0.999))

    def _read(self, fd: int) -> None:
        try:
            open_still = self._readers[fd].read()
        except BlockingIOError:
            return
        if not open_still:
            self._poll.unregister(fd)
            del self._readers[fd]

    def _ended(self, ready: list[tuple[int, int]]) -> bool:
        """Whether the job is over. The end of the candidate ends it, unless a tester still has to judge
        that."""
        for fd, _ in ready:
            one = self._pidfds.pop(fd, None)
            if one is not None:
                self._poll.unregister(fd)
                one.reap()
        last = self._children[-1]
        return last.status is not None

    def _limit_reached(self) -> str | None:
        job, now = self._job, time.monotonic()
        if now - self._started >= job["wall"] and self._overdue(now):
            return "wall"
        if now - self._started < _TICK and not job["per_test"]:
            return None
        if any(one.cpu_now() >= job["cpu"] for one in self._children):
            return "cpu"
        if job["per_test"] and self._test_overdue(now):
            return "test"
        if self._walls.active["limits"]:
            if not self._walls.counts_threads and self._too_many_threads():
                return "threads"
            if not self._walls.active["namespaces"] and scratch.too_large(self._scratch, job["scratch"]):
                return "scratch"
        return None

    def _test_overdue(self, now: float) -> bool:
        """Whether the test at work, the one after the last answer, has had its time: of a processor, or
        asleep."""
        answered_at = max(sink.answered_at for sink in self._sinks.values())
        if not answered_at:
            return False  # the program isn't loaded yet
        used = sum(one.cpu_now() for one in self._children)
        if answered_at != self._test_began:
            self._test_began, self._used_before = answered_at, used
        if used - self._used_before >= self._job["per_test"]:
            return True
        return now - answered_at >= self._job["per_test"] and not any(one.runnable() for one in self._children)

    def _overdue(self, now: float) -> bool:
        """Whether the wall limit is met, fairly. Who is ready to run at this moment is held up by the
        machine, or uses its CPU limit up; the kernel counts the current wait only when it is over."""
        if now - self._started >= _PATIENCE * self._job["wall"]:
            return True
        return self.fair_seconds() >= self._job["wall"] and not any(one.runnable() for one in self._children)

    def fair_seconds(self) -> float:
        """Time since the start, without the time that children had to wait for a processor: a program isn't
        judged slow because its machine is busy."""
        passed = time.monotonic() - self._started
        if passed >= _PATIENCE * self._job["wall"]:
            return passed
        return passed - sum(one.waited() for one in self._children)

    def _too_many_threads(self) -> bool:
        return any(one.status is None and one.threads() > self._job["processes"] for one in self._children)

    def drain(self) -> None:
        """What the pipes still hold after the end of their writers."""
        for sink in list(self._readers.values()):
            with contextlib.suppress(
                BlockingIOError
            ):  # somebody outside this job can't hold it open: all children are reaped
                while sink.read() and not sink.too_much:
                    pass


def _reap_rest(walls: confine.Confinement) -> None:
    """Whatever else the job started was handed to this process by the kernel; end it until nothing is
    left."""
    for _ in range(10_000):
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            _kill_descendants(walls)
            time.sleep(0.001)
    raise wire.ClosedError("a program's processes can't be ended")


def _kill_descendants(walls: confine.Confinement) -> None:
    """Everything below this process; with a user or a process namespace of its own, in one stroke."""
    if os.getpid() == 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, _SIGKILL)
        return
    for pid in _descendants():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, _SIGKILL)


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rsplit(b")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(name))
    found, open_ends = [], [os.getpid()]
    while open_ends:
        below = children.get(open_ends.pop(), [])
        found += below
        open_ends += below
    return found
