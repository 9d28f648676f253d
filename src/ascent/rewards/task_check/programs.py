"""The one place where `ascent tasks check` runs programs: in the sandbox, each against tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from ascent.sandbox.errors import SandboxError
from ascent.sandbox.types import Language, Limits, Program, Test, Verdict
from ascent.tasks.checking.cases import Case
from ascent.tasks.checking.probe import CALLS, probe_program, probe_test, read_answers
from ascent.types import Task


class Judge(Protocol):
    """The seam of the sandbox."""

    limits: Limits

    def submit(self, program: Program, tests: Sequence[Test], limits: Limits | None = None) -> Future[Verdict]:
        """Judge a program; the future gives its Verdict."""
        ...

    def check(self, language: Language, tests: Sequence[Test], prelude: str = "") -> None:
        """Raise SandboxError when programs with these tests can't be judged here."""
        ...


@dataclass(slots=True)
class Bench:
    """Runs programs for tasks in `sandbox`, and counts them. Used by several threads."""

    sandbox: Judge
    count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refusal(self, task: Task) -> str | None:
        """Why the task's tests can't be run here; None where they can."""
        try:
            self.sandbox.check(task.language, task.tests, task.prelude)
        except SandboxError as error:
            return str(error)
        return None

    def takes(self, test: Test) -> bool:
        """Whether the sandbox can hand over the values of a test for Python."""
        try:
            self.sandbox.check("python", [test])
        except SandboxError:
            return False
        return True

    def limits(self, task: Task) -> Limits:
        """Those of the task, else the sandbox's."""
        return task.limits or self.sandbox.limits

    def judge(
        self, task: Task, runs: Sequence[tuple[str, Sequence[Test]]], limits: Limits | None = None
    ) -> list[Verdict]:
        """Judge each source by its tests, several at once; verdicts in the same order."""
        with self._lock:
            self.count += len(runs)
        futures = [
            self.sandbox.submit(Program(source, task.language, task.prelude), tests, limits or self.limits(task))
            for source, tests in runs
        ]
        return [future.result() for future in futures]

    def answers(self, task: Task, source: str, asked: Sequence[Case], limits: Limits) -> dict[int, str]:
        """What a program answers to calls, by their places, as text; what it doesn't come to is absent."""
        parts = [asked[first : first + CALLS] for first in range(0, len(asked), CALLS)]
        verdicts = self.judge(task, [(probe_program(source, part), [probe_test()]) for part in parts], limits)
        return {
            number * CALLS + place: text
            for number, verdict in enumerate(verdicts)
            for place, text in read_answers(verdict.output).items()
        }
