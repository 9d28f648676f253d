"""The sandbox: a pool of warm slots, each judging one program at a time."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from ascent.host import open_files
from ascent.host.engine_cores import cores_beside_engines
from ascent.host.machine_share import cores_of_this_process
from ascent.sandbox.base import make_base, remove_tree
from ascent.sandbox.canary import holes
from ascent.sandbox.compilers import find_toolchain
from ascent.sandbox.compiling import COMPILE_LIMITS, CompileCache
from ascent.sandbox.errors import LevelUnavailableError, SandboxClosedError, SandboxError, SlotError
from ascent.sandbox.interpreter import find_interpreter
from ascent.sandbox.judge import Judge, make_plan
from ascent.sandbox.layers import LayerReport, mend
from ascent.sandbox.slot import Slot, SlotConfig
from ascent.sandbox.types import LEVELS, Language, Level, Limits, Outcome, Program, StdioTest, Test, Verdict
from ascent.sandbox.work import Job, Work

_ATTEMPTS = 2
_LEFT_OUT: dict[Level, frozenset[str]] = {
    "namespaced": frozenset(),
    "confined": frozenset({"namespaces"}),
    "syscall-only": frozenset({"namespaces", "landlock"}),
    "none": frozenset({"namespaces", "landlock", "seccomp"}),
}


@dataclass(frozen=True, slots=True)
class SandboxStats:
    """Counters since the start. `queued` and `running` are programs now. `busy_seconds` is slot time spent
    on programs, `queue_seconds` the time that programs waited for a slot, `exposed_seconds` the time that
    callers of `run_many` and `as_finished` were blocked: what judging added to their own work."""

    slots: int
    level: Level
    queued: int
    running: int
    finished: int
    infrastructure_errors: int
    slot_restarts: int
    busy_seconds: float
    queue_seconds: float
    exposed_seconds: float
    most_queued: int


class _SlotThread(threading.Thread):
    """Owns one slot: starts it, feeds it, replaces it."""

    def __init__(
        self, work: Work, cache: CompileCache, config: SlotConfig, base: str, uid: int | None, number: int
    ) -> None:
        super().__init__(name=f"sandbox-slot-{number}", daemon=True)
        self._work, self._cache = work, cache
        self.slot = Slot(config, base, uid)
        self.level: Level = "none"
        self.started: Future[LayerReport] = Future()

    def run(self) -> None:
        try:
            self.slot.start()
            self.level = self.slot.report["level"]
            found = holes(self.slot, self.level)
            self.started.set_result(LayerReport.of(self.slot.report, "none" if found else self.level, found))
        except Exception as error:  # noqa: BLE001 - handed to the thread that opens the sandbox
            self.started.set_exception(error)
            self.slot.close()
            return
        try:
            while (job := self._work.take()) is not None:
                if self._work.cores != self.slot.config.cores:
                    self.slot.config = replace(self.slot.config, cores=self._work.cores)
                    self._replace()  # if that fails, so does the job's first attempt
                self._judge(job)
        finally:
            self.slot.close()

    def _judge(self, job: Job) -> None:
        started, restarts, failure = time.monotonic(), 0, ""
        for _ in range(_ATTEMPTS):
            try:
                verdict = Judge(self.slot, self.level, job.program, job.plan, job.limits, self._cache).verdict()
                break
            except SlotError as error:
                failure = str(error)
                restarts += 1
                if self._work.closed or not self._replace():
                    verdict = _masked(job, self.level, failure)
                    break
            except Exception as error:  # noqa: BLE001 - a fault of ours must reach the caller, not end this thread
                self._work.done(time.monotonic() - started, restarts, True)
                job.future.set_exception(error)
                return
        else:
            verdict = _masked(job, self.level, failure)
        self._work.done(time.monotonic() - started, restarts, verdict.infrastructure_error is not None)
        if self._work.closed and verdict.infrastructure_error is not None:
            job.future.set_exception(SandboxClosedError("the sandbox was closed while the program ran"))
        else:
            job.future.set_result(verdict)

    def _replace(self) -> bool:
        """A fresh slot of the same level; without one, whoever comes next is masked and not run weaker."""
        before = self.slot.report["level"]
        self.slot.close()
        try:
            self.slot.start()
        except SlotError:
            return False
        if self.slot.report["level"] != before:
            self.slot.close()
            return False
        return True


def _masked(job: Job, level: Level, why: str) -> Verdict:
    outcomes = (Outcome.NOT_RUN,) * job.plan.count
    return Verdict(compiled=False, outcomes=outcomes, seconds=0.0, level=level, infrastructure_error=why)


class Sandbox:
    """Runs programs in confined processes and judges them against tests.

    `slots` programs run at once, at nice 19, so that training beside it isn't slowed. By default they are half of
    the cores that this process may use (`machine_share.cores_of_this_process`), at least one. `require` is the
    weakest level that is acceptable, `at_most` the strongest that is used (`confined` leaves namespaces out, which
    makes it somewhat faster). `packages` may be imported by programs and are loaded by each slot.

    Raises LevelUnavailableError when this machine can't give what is required, SandboxError when slots can't
    be started, InputError when the launcher's LOCAL_WORLD_SIZE is no number.
    """

    def __init__(
        self,
        slots: int | None = None,
        limits: Limits | None = None,
        *,
        require: Level = "confined",
        at_most: Level = "namespaced",
        without: Iterable[str] = (),
        packages: Sequence[str] = (),
        allow_in_process: bool = False,
        nice: int = 19,
        compile_limits: Limits = COMPILE_LIMITS,
    ) -> None:
        for name, level in (("require", require), ("at_most", at_most)):
            if level not in LEVELS:
                raise SandboxError(f"{name}={level!r} is no level; expected one of {', '.join(LEVELS)}")
        if slots is not None and slots < 1:
            raise SandboxError(f"slots={slots} is too few; expected at least 1")
        self.limits = limits or Limits()
        self._allow_in_process = allow_in_process
        self._preludes: dict[str, str | None] = {"": None}  # that were tried, and why they fail
        config = SlotConfig(
            interpreter=find_interpreter(packages),
            nice=nice,
            without=_LEFT_OUT[at_most] | frozenset(without),
            read_only=at_most == "syscall-only",
            scratch_bytes=self.limits.scratch_bytes,
        )
        self._work = Work()
        self._cores = frozenset(os.sched_getaffinity(0))  # before an engine binds this process
        base, self._lock = make_base()
        first_uid = _free_user_ids() if os.geteuid() == 0 else None
        self._threads: list[_SlotThread] = []
        self._finalizer = weakref.finalize(self, _close, self._work, self._threads, base, self._lock, os.getpid())
        try:
            self._start(slots or max(1, cores_of_this_process() // 2), config, base, first_uid, compile_limits)
            self._check_level(require)
        except BaseException:
            self.close()
            raise

    def _start(self, slots: int, config: SlotConfig, base: str, first_uid: int | None, compile_limits: Limits) -> None:
        open_files.raise_limit()  # each slot takes a handful
        cache = CompileCache(os.path.join(base, "compiled"), compile_limits)
        os.mkdir(cache.folder)
        os.chmod(cache.folder, 0o711)
        for number in range(slots):
            uid = None if first_uid is None else first_uid + number
            thread = _SlotThread(self._work, cache, config, base, uid, number)
            self._threads.append(thread)
            thread.start()
        reports = [thread.started.result() for thread in self._threads]
        self.report = min(reports, key=lambda report: LEVELS.index(report.level))
        for thread in self._threads:
            thread.level = self.report.level

    def _check_level(self, require: Level) -> None:
        if LEVELS.index(self.report.level) < LEVELS.index(require):
            raise LevelUnavailableError(mend(self.report, require))

    @property
    def level(self) -> Level:
        """The confinement that is active, in every slot."""
        return self.report.level

    @property
    def slots(self) -> int:
        """How many programs run at once."""
        return len(self._threads)

    @property
    def stats(self) -> SandboxStats:
        """Counters now."""
        work = self._work
        with work.changed:
            return SandboxStats(
                slots=self.slots,
                level=self.level,
                queued=work.waiting(),
                running=work.running,
                finished=work.finished,
                infrastructure_errors=work.infrastructure_errors,
                slot_restarts=work.restarts,
                busy_seconds=work.busy,
                queue_seconds=work.queued,
                exposed_seconds=work.exposed,
                most_queued=work.most_queued,
            )

    def submit(
        self, program: Program, tests: Sequence[Test], limits: Limits | None = None, *, later: bool = False
    ) -> Future[Verdict]:
        """Judge a program; with no tests, only whether it is valid. `later`: once no other program waits for a slot.
        Raises InvalidTestError and SandboxClosedError at once; the future never holds an exception of the program's
        making."""
        plan = make_plan(program, tests, self._allow_in_process)
        if program.language != "python":
            self._check_language(program.language)
        job = Job(program, plan, limits or self.limits, Future(), time.monotonic())
        self._work.put(job, later=later)
        return job.future

    def keep_off_engines(self) -> None:
        """From the next program on, use cores to which no engine on this machine is bound. Call it once they stand."""
        left = cores_beside_engines(self._cores)
        self._work.cores = () if left == self._cores else tuple(sorted(left))

    def check(self, language: Language, tests: Sequence[Test], prelude: str = "") -> None:
        """Raise what `submit` would raise for a program in this language with these tests, and SandboxError when
        the prelude fails here."""
        make_plan(Program("", language, prelude), tests, self._allow_in_process)
        if language != "python":
            self._check_language(language)
        if prelude not in self._preludes:
            verdict = self.submit(Program("", prelude=prelude), [StdioTest("", "")]).result()
            self._preludes[prelude] = verdict.infrastructure_error
        if self._preludes[prelude] is not None:
            raise SandboxError(f"the prelude fails: {self._preludes[prelude]}")

    def _check_language(self, language: Language) -> None:
        if self.level == "syscall-only":
            raise SandboxError(
                f"{language} programs need level 'confined': a compiler can't write files without Landlock"
            )
        find_toolchain(language)

    def run_many(
        self, programs: Iterable[tuple[Program, Sequence[Test]]], limits: Limits | None = None
    ) -> list[Verdict]:
        """Judge programs, each with its tests; verdicts in the same order."""
        futures = [self.submit(program, tests, limits) for program, tests in programs]
        started = time.monotonic()
        try:
            return [future.result() for future in futures]
        finally:
            self._expose(time.monotonic() - started)

    async def as_finished(
        self, programs: Iterable[tuple[Program, Sequence[Test]]], limits: Limits | None = None
    ) -> AsyncIterator[tuple[int, Verdict]]:
        """Verdicts as they finish, each with the place of its program."""
        waiting = {
            asyncio.wrap_future(self.submit(program, tests, limits)): place
            for place, (program, tests) in enumerate(programs)
        }
        while waiting:
            started = time.monotonic()
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            self._expose(time.monotonic() - started)
            for future in done:
                yield waiting.pop(future), future.result()

    def _expose(self, seconds: float) -> None:
        with self._work.changed:
            self._work.exposed += seconds

    def close(self) -> None:
        """End all slots. Programs that wait are cancelled; futures of those that run raise
        SandboxClosedError."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close(work: Work, threads: Sequence[_SlotThread], base: str, lock: int, owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the process that opened the sandbox
    with work.changed:
        work.closed = True
        waiting = work.clear()
        work.changed.notify_all()
    for job in waiting:
        job.future.cancel()
    for thread in threads:
        thread.slot.interrupt()
    for thread in threads:
        thread.join()
    remove_tree(base)
    os.close(lock)


def _free_user_ids() -> int:
    """The first of a run of user ids that nobody has; high where the user namespace has them, else below
    65536."""
    with open("/proc/self/uid_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    high = random.SystemRandom().randrange(1_000_000_000, 1_100_000_000, 1000)
    if any(start <= high and high + 1000 <= start + count for start, _, count in ranges):
        return high
    return random.SystemRandom().randrange(61_184, 64_500, 200)
