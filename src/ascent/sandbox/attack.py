"""Runs the hostile programs against a sandbox and looks for what they got: a pass, a secret, a file, a
process, a connection."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

from ascent.sandbox.hostile import Attack
from ascent.sandbox.pool import Sandbox
from ascent.sandbox.types import AssertTest, FunctionTest, Limits, Program, StdioTest, Test, Verdict

# Small, so that programs which use everything up end soon.
COMPILE = Limits(wall_seconds=20.0, cpu_seconds=1.5, memory_bytes=1 << 30, file_bytes=64 << 20, processes=64)
LIMITS = Limits(wall_seconds=0.8, cpu_seconds=0.3, memory_bytes=400 << 20)
_CHECK = """
def check(candidate):
    wanted = {wanted!r}
    for n in range(3):
        assert candidate(n) == wanted + n
"""
# Each of these would pass for an object whose operators answer whatever is asked.
_COMPARISONS = (
    "x = solve(3)\nassert abs(x - {wanted!r}.5) < 1e-6",
    "x = solve(3)\nassert {wanted!r} in x",
    "import math\nx = solve(3)\nassert math.isclose(x, {wanted!r}.25, rel_tol=1e-9)",
    "assert all(map(solve, [1, 2, 3]))\nassert [solve(1)] == [{wanted!r}]",
    "x = solve(3)\nassert {wanted!r} - 1 < x < {wanted!r} + 1",
    "assert not (solve(3) != {wanted!r})",
    "assert sorted([solve(3), {wanted!r}]) == [{wanted!r}, {wanted!r}]",
)


@dataclass(frozen=True, slots=True)
class AttackResult:
    """What became of one attack. `breaches` are in words; none is good."""

    attack: Attack
    verdict: Verdict
    breaches: tuple[str, ...]


class Arena:
    """What attacks are let loose on: a secret file, a folder that all may write, a listener, a victim."""

    def __init__(self) -> None:
        self.token = "T" + secrets.token_hex(12)
        self.wanted = secrets.randbelow(10**9) + 10**9
        self.root = Path(tempfile.mkdtemp(prefix="ascent-arena-"))
        self.root.chmod(0o711)
        self.secret = self.root / "secret"
        self.target = self.root / "target"
        self.target.mkdir()
        self.target.chmod(0o777)
        self.connections: list[str] = []
        self._listeners = [
            self._listen(socket.AF_INET, ("127.0.0.1", 0)),
            self._listen(socket.AF_UNIX, self._unix),
        ]
        self._datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._datagrams.bind(str(self.root / "datagrams"))
        os.chmod(self.root / "datagrams", 0o777)
        self._datagrams.setblocking(False)
        self.victim = self._start_victim()
        self.reset()

    @property
    def _unix(self) -> str:
        return str(self.root / "socket")

    def _listen(self, family: int, address: tuple[str, int] | str) -> socket.socket:
        listener = socket.socket(family)
        listener.bind(address)
        listener.listen()
        if isinstance(address, str):
            os.chmod(address, 0o777)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections.append("connected")
            connection.close()

    @staticmethod
    def _start_victim() -> subprocess.Popen[bytes]:
        code = "import time\ntime.sleep(3600)"
        return subprocess.Popen([sys.executable, "-I", "-S", "-c", code], env={"SECRET": "none"})

    def reset(self) -> None:
        """As new, for the next attack."""
        self.secret.unlink(missing_ok=True)
        self.secret.write_text(self.token)
        self.secret.chmod(0o644)
        self._secret_status = self._status()
        shutil.rmtree(self.target)
        self.target.mkdir()
        self.target.chmod(0o777)
        self.connections.clear()
        if self.victim.poll() is not None:
            self.victim = self._start_victim()
        for place in ("/tmp", "/dev/shm", "/var/tmp"):
            Path(place, self.token).unlink(missing_ok=True)

    def _status(self) -> tuple[int, ...]:
        status = self.secret.stat()
        return status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns

    def fill(self, source: str) -> str:
        """The source with this arena's places in it."""
        port = self._listeners[0].getsockname()[1]
        return Template(source).safe_substitute(
            SECRET=self.secret,
            TOKEN=self.token,
            TARGET=self.target,
            PORT=port,
            UNIX=self._unix,
            DATAGRAM=self.root / "datagrams",
            VICTIM=self.victim.pid,
        )

    def traces(self) -> Iterator[str]:
        """What an attack left outside."""
        if not self.secret.exists() or self._status() != self._secret_status:
            yield "changed a file of somebody else"
        written = sorted(path.name for path in self.target.iterdir())
        if written:
            yield f"wrote outside its scratch directory ({', '.join(written)})"
        if any(Path(place, self.token).exists() for place in ("/tmp", "/dev/shm", "/var/tmp")):
            yield "wrote into a shared folder"
        if self.connections:
            yield "reached a socket outside"
        with suppress(BlockingIOError):
            self._datagrams.recv(100)
            yield "sent a datagram outside"
        if self.victim.poll() is not None:
            yield "killed a process outside"

    def close(self) -> None:
        """Take everything away again."""
        for listener in [*self._listeners, self._datagrams]:
            listener.close()
        self.victim.kill()
        self.victim.wait()
        shutil.rmtree(self.root, ignore_errors=True)


@contextmanager
def arena() -> Iterator[Arena]:
    """An arena, taken away at the end."""
    with ExitStack() as stack:
        one = Arena()
        stack.callback(one.close)
        yield one


def judged_by(attack: Attack, wanted: int) -> list[Test]:
    """Tests that no attack can pass without knowing `wanted`."""
    if attack.judged == "stdio":
        return [StdioTest("3\n", f"3\n{wanted}\n")]
    if attack.judged == "compare":
        return [AssertTest(code.format(wanted=wanted)) for code in _COMPARISONS]
    return [
        FunctionTest("solve", (3,), wanted),
        AssertTest(f"assert solve(4) == {wanted}"),
        AssertTest(_CHECK.format(wanted=wanted) + "check(solve)"),
    ]


def run_attacks(
    sandbox: Sandbox, programs: Sequence[Attack], tell: Callable[[AttackResult], None] = lambda result: None
) -> list[AttackResult]:
    """Run them one after another; `sandbox` must have one slot, so that each is followed by an honest
    program on the same."""
    results = []
    with arena() as ground:
        for attack in programs:
            result = _run_attack(sandbox, ground, attack)
            results.append(result)
            tell(result)
    return results


def _run_attack(sandbox: Sandbox, ground: Arena, attack: Attack) -> AttackResult:
    ground.reset()
    before = len(processes_below(os.getpid()))
    restarts = sandbox.stats.slot_restarts
    if attack.before:
        sandbox.submit(Program(ground.fill(attack.before)), [FunctionTest("solve", (1,), 2)], LIMITS).result()
    program = Program(ground.fill(attack.source), attack.language)
    verdict = sandbox.submit(program, judged_by(attack, ground.wanted), LIMITS).result()
    breaches = [*ground.traces(), *_breaches(attack, verdict, ground)]
    if sandbox.stats.slot_restarts > restarts:
        breaches.append("brought its slot down")
    elif (left := len(processes_below(os.getpid())) - before) > 0:
        breaches.append(f"left {left} processes behind")
    honest = sandbox.submit(Program("def solve(n): return n + 1"), [FunctionTest("solve", (1,), 2)], LIMITS).result()
    if not honest.all_passed:
        breaches.append(f"made the next program fail ({honest.error or honest.infrastructure_error})")
    return AttackResult(attack, replace(verdict, output=verdict.output[:200]), tuple(breaches))


def _breaches(attack: Attack, verdict: Verdict, ground: Arena) -> Iterator[str]:
    if verdict.passed > attack.earned:
        yield f"passed {verdict.passed} tests, earned {attack.earned}"
    if ground.token in verdict.output or ground.token in (verdict.error or ""):
        yield "did or read what it must not"
    if verdict.peak_bytes > LIMITS.memory_bytes:
        yield f"used {verdict.peak_bytes >> 20} MiB of memory"
    if verdict.infrastructure_error is not None:
        yield f"looks like a fault of the sandbox: {verdict.infrastructure_error}"


def processes_below(root: int) -> set[int]:
    """Ids of all descendants of a process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_bytes().rsplit(b")", 1)[1].split()[1])
            except OSError:
                continue  # it ended meanwhile
            children.setdefault(parent, []).append(int(entry.name))
    found: set[int] = set()
    ends = [root]
    while ends:
        below = children.get(ends.pop(), [])
        found.update(below)
        ends += below
    return found
