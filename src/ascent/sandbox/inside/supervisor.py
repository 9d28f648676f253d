"""A slot: forks a confined child for each program, watches it, ends it, and reports how it ended.

It never looks into what a program sends, never holds an expected value or test code, and wipes what it
carried before it forks again, so that a program can't find another's answers in memory that it inherits.
"""

from __future__ import annotations

import _signal
import _socket
import contextlib
import fcntl
import gc
import os
import sys

from ascent.sandbox.inside import child, confine, scratch, tester, wire
from ascent.sandbox.inside.watch import TESTER_ANSWERS, Sink, Watched, watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

_ALL_SEALS = 0xF  # no more seals, no shrinking, growing or writing
_SIGTERM, _SIGKILL = 15, 9
_CHANNEL, _SOCKET = 3, 4  # descriptors in a child, after the standard three


def main() -> NoReturn:
    """Set up the slot as the judge's first message says, then serve it until it closes."""
    sock = wire.open_socket(int(sys.argv[1]))
    config, _, _ = wire.receive(sock)
    os.umask(0o077)
    confine.be_modest(config["nice"], config["cores"])
    confine.lead_session(config["nice"])
    namespaced, reason = _move_into_namespaces(config, sock)
    confine.protect_slot()
    _signal.signal(_SIGTERM, _parent_died)
    for path in config["path"]:
        sys.path.append(path)
    for module in config["modules"]:
        __import__(module)
    walls = confine.Confinement(config, namespaced, reason)
    sys.dont_write_bytecode = True
    slot = _Slot(sock, config, walls)
    wire.send(sock, slot.report())
    compile("", "<warm>", "exec")  # makes the types of syntax trees, which each child would have to make for itself
    gc.collect()
    gc.freeze()
    slot.serve()


def _parent_died(number: int, frame: object) -> NoReturn:
    raise wire.ClosedError("the judge's thread ended")


def _move_into_namespaces(config: Mapping[str, Any], sock: _socket.socket) -> tuple[bool, str]:
    """Where permitted, this process becomes the keeper of a process that is number 1 of new namespaces and
    carries on here."""
    if "namespaces" in config["without"]:
        confine.become_subreaper()
        confine.die_with_parent(_SIGTERM)
        return False, "left out on request"
    arguments = (config["scratch"], config["scratch_bytes"], config["uid"])
    ready, tell = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        os.close(ready)
        return _keep_namespaces(arguments, tell)
    os.close(tell)
    answer = os.read(ready, 4096).decode()
    os.close(ready)
    if answer == "ready":
        confine.die_with_parent(_SIGKILL)
        sock.close()
        os._exit(os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1]) & 0xFF)
    os.waitpid(keeper, 0)
    confine.become_subreaper()
    confine.die_with_parent(_SIGTERM)
    return False, answer or "the process that enters the namespaces died"


def _keep_namespaces(arguments: tuple[str, int, int | None], tell: int) -> tuple[bool, str]:
    """In the keeper. Returns only in process 1 of the new namespaces."""
    confine.die_with_parent(_SIGKILL)
    try:
        confine.enter_namespaces()
        first = os.fork()
    except OSError as error:
        os.write(tell, f"the kernel or a container denies new namespaces: {error.strerror}".encode())
        os._exit(1)
    if first:
        os.close(tell)
        os.closerange(3, 1 << 16)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 0xFF)
    confine.die_with_parent(_SIGKILL)
    try:
        confine.furnish_namespaces(*arguments)
    except OSError as error:
        os.write(tell, f"the new namespaces can't be furnished: {error.strerror}".encode())
        os._exit(1)
    os.write(tell, b"ready")
    os.close(tell)
    return True, ""


class _Slot:
    def __init__(self, sock: _socket.socket, config: Mapping[str, Any], walls: confine.Confinement) -> None:
        self._sock, self._walls = sock, walls
        self._scratch: str = config["scratch"]
        if walls.uid is not None and not walls.active["namespaces"]:
            os.chown(self._scratch, walls.uid, walls.uid)
        self._environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": self._scratch,
            "TMPDIR": self._scratch,
            "LANG": "C.UTF-8",
        }
        os.environ.clear()
        os.environ.update(self._environment)
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._errors = os.dup(2)  # the judge reads last words from it
        _prepare_streams(self._null)

    def report(self) -> dict[str, object]:
        """Which layers are active, and why the others aren't."""
        walls = self._walls
        return {
            "active": walls.active,
            "reasons": walls.reasons,
            "level": walls.level,
            "landlock_abi": walls.landlock_abi,
            "uid": walls.uid,
            "read_search": walls.keeps_read_search,
            "python": sys.version.split()[0],
        }

    def serve(self) -> NoReturn:
        """Answer the judge until it is gone."""
        try:
            while True:
                job, payload, fds = wire.receive(self._sock)
                self._run(job, payload, fds)
        except wire.ClosedError:
            scratch.empty(self._scratch)
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - the judge reads these last words
            os.dup2(self._errors, 2)
            sys.excepthook(type(error), error, error.__traceback__)
            os._exit(1)

    def _run(self, job: Mapping[str, Any], payload: bytearray, fds: list[int]) -> None:
        sinks = {
            "channel": Sink(job["channel_bytes"], frames=job["answers"] if job["kind"] == "function" else None),
            "out": Sink(job["output_bytes"], strict=job["kind"] in ("stdio", "execute")),
            "err": Sink(16384),
        }
        for module in job["prelude_modules"]:
            __import__(module)  # once in a slot, and not again in each of its children
        runner = _Runner(self, job, payload, fds, sinks)
        try:
            children = runner.start()
            ending = watch(children, sinks, job, self._sock, self._walls, self._scratch)
        finally:
            runner.close()
        if job["kind"] == "compile" and job["target"] and ending["code"] == 0:
            ending["error"] = scratch.take_file(self._scratch, "program", job["target"], job["binary_bytes"])
        for name, sink in sinks.items():
            ending[name] = sink.used
        ending["began"], ending["answered"] = sinks["channel"].began, sinks["channel"].answered
        ending["tests_answered"] = sinks["tests"].answered if "tests" in sinks else 0
        parts = [sink.data() for sink in sinks.values()]
        wire.send(self._sock, ending, *parts)
        parts.clear()
        for sink in sinks.values():
            sink.wipe()
        payload[:] = bytes(len(payload))
        scratch.empty(self._scratch)


def _prepare_streams(null: int) -> None:
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.dup2(writer, 2)
    child.prepare_streams()
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(reader)
    os.close(writer)


class _Runner:
    """Forks the processes of one job. Everything that it opens is closed again by `close`."""

    def __init__(
        self, slot: _Slot, job: Mapping[str, Any], payload: bytearray, fds: list[int], sinks: dict[str, Sink]
    ) -> None:
        self._slot, self._job, self._payload, self._fds, self._sinks = slot, job, payload, fds, sinks
        self._mine: list[int] = []
        self._parent = os.getpid()

    def start(self) -> list[Watched]:
        """Fork; returns the candidate first, then the tester if there is one. Raises OSError."""
        job = self._job
        writers = {name: self._pipe(sink) for name, sink in self._sinks.items()}
        stdin = self._stdin()
        if job["kind"] != "assert":
            child_fds = (stdin, writers["out"], writers["err"], writers["channel"])
            children = [self._fork(child_fds, job["profile"], self._candidate)]
        else:
            near, far = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM, 0)
            calls, answers = near.detach(), far.detach()
            self._mine += [calls, answers]
            status, null = writers["channel"], self._slot._null
            result = self._pipe(
                self._sinks.setdefault("tests", Sink(1 << 20, frames=job["answers"], answers=TESTER_ANSWERS))
            )
            candidate_fds = (stdin, writers["out"], writers["err"], status, answers)
            tester_fds = (null, null, null, result, calls, self._fds[0])
            children = [
                self._fork(candidate_fds, "run", self._candidate),
                self._fork(tester_fds, "run", lambda: tester.run_tests(5, _CHANNEL, _SOCKET)),
            ]
        self.close()
        return children

    def _pipe(self, sink: Sink) -> int:
        sink.fd, writer = os.pipe()
        os.set_blocking(sink.fd, False)
        self._mine.append(writer)
        return writer

    def _stdin(self) -> int:
        """The input as a read-only file in memory: programs may read, seek or map it, or open /dev/stdin."""
        size = self._job["stdin_bytes"]
        if not size:
            return self._slot._null
        start = self._job["prelude_bytes"] + self._job["source_bytes"]
        fd = os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._mine.append(fd)
        view = memoryview(self._payload)[start : start + size]
        while view:
            view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _ALL_SEALS)
        reader = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        self._mine.append(reader)
        return reader

    def _fork(self, fds: tuple[int, ...], profile: str, body: Any) -> Watched:
        pid = os.fork()
        if pid == 0:
            try:
                self._become(fds, profile)
                body()
            except BaseException as error:  # noqa: BLE001 - nothing may return into the slot's own loop
                _report_failure(error)
            os._exit(70)
        return Watched(pid)

    def _become(self, fds: tuple[int, ...], profile: str) -> None:
        os.setpgid(0, 0)
        _signal.signal(_SIGTERM, _signal.SIG_DFL)
        safe = [os.dup2(fd, 64 + place, inheritable=False) for place, fd in enumerate(fds)]
        for place, fd in enumerate(safe):
            os.dup2(fd, place, inheritable=place < 3)
        kept = self._slot._walls.run_ruleset
        os.closerange(len(fds), max(kept, len(fds)))
        os.closerange(max(kept + 1, len(fds)), 1 << 16)
        os.chdir(self._slot._scratch)
        self._slot._walls.enter(profile, self._job, self._parent)

    def _candidate(self) -> None:
        job, first = self._job, self._job["prelude_bytes"]
        start = first + job["source_bytes"]
        prelude, source = bytes(self._payload[:first]), bytes(self._payload[first:start])
        blob = bytes(self._payload[start:]) if job["kind"] in ("function", "in_process") else b""
        self._payload[:] = bytes(len(self._payload))
        if job["kind"] in ("compile", "execute"):
            child.send_frame(_CHANNEL, b"B")
            os.execve(
                job["executables"][0] if job["kind"] == "execute" else job["command"][0],
                job["command"],
                self._slot._environment,
            )
        if job["kind"] == "function":
            child.run_functions(prelude, source, blob, _CHANNEL)
        if job["kind"] == "in_process":
            child.run_in_process(prelude, source, blob, _CHANNEL)
        if job["kind"] == "stdio":
            child.run_script(prelude, source, _CHANNEL)
        if job["kind"] == "assert":
            child.serve_calls(prelude, source, _CHANNEL, _SOCKET)
        child.compile_only(source, _CHANNEL)

    def close(self) -> None:
        """Close this side's copies, so that the pipes end with the children."""
        for fd in [*self._mine, *self._fds]:
            os.close(fd)
        self._mine, self._fds = [], []


def _report_failure(error: BaseException) -> None:
    """Say on the child's own error stream why it could not begin."""
    with contextlib.suppress(OSError):
        os.write(2, f"{type(error).__name__}: {error}".encode())
