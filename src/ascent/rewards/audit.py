"""The audit: a program that passes all visible tests is also judged by the hidden ones, unpaid.

A reward that runs visible tests only can't tell a solution from a program that knows their inputs. The audit can: it
says how many of the programs that are paid in full do what was asked. It changes no reward.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from typing import Protocol

from ascent.sandbox.errors import SandboxError
from ascent.sandbox.types import Limits, Outcome, Program, Test, Verdict
from ascent.tasks.digests import tasks_digest
from ascent.types import Task

_MOST_KEPT = 50_000  # programs

Audited = tuple[Outcome, ...] | None  # one outcome a hidden test; None where the sandbox could not judge


class PatientJudge(Protocol):
    """A sandbox that can let a program wait until it has nothing else to do."""

    def submit(
        self, program: Program, tests: Sequence[Test], limits: Limits | None = None, *, later: bool = False
    ) -> Future[Verdict]:
        """Judge a program; the future gives its Verdict."""
        ...


class Audit:
    """Judges each distinct program of a task once, when no paid program waits. May be used by several threads."""

    def __init__(self, judge: PatientJudge, limits: Limits | None = None) -> None:
        """`limits` are those of tasks that have none of their own; None: the judge's."""
        self._judge, self._limits = judge, limits
        self._digests: dict[str, str] = {}  # of tasks, by id
        self._kept: OrderedDict[bytes, Future[Audited]] = OrderedDict()  # the last used at the end
        self._lock = threading.Lock()

    def of(self, task: Task, program: str) -> Future[Audited]:
        """What the hidden tests of a task say of a program; it is judged now unless it was before. The future holds no
        exception: what could not be judged is None, and may be asked for again."""
        with self._lock:
            key = self._key(task, program)
            if (known := self._kept.get(key)) is not None:
                self._kept.move_to_end(key)
                return known
            asked = self._kept[key] = Future()
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        judged = Program(program, task.language, task.prelude)
        try:
            verdict = self._judge.submit(judged, task.hidden_tests, task.limits or self._limits, later=True)
        except SandboxError:  # it closes
            self._finish(key, asked, None)
        else:
            verdict.add_done_callback(lambda done: self._finish(key, asked, _outcomes(done)))
        return asked

    def _finish(self, key: bytes, asked: Future[Audited], outcomes: Audited) -> None:
        if outcomes is None:
            with self._lock:
                self._kept.pop(key, None)
        asked.set_result(outcomes)

    def _key(self, task: Task, program: str) -> bytes:
        if task.id not in self._digests:
            self._digests[task.id] = tasks_digest([task])
        return hashlib.sha256(f"{self._digests[task.id]}\n{program}".encode("utf-8", "surrogatepass")).digest()


def _outcomes(done: Future[Verdict]) -> Audited:
    try:
        verdict = done.result()
    except (CancelledError, SandboxError):  # the sandbox was closed
        return None
    return None if verdict.infrastructure_error is not None else verdict.outcomes
