"""What is found out about a program beside its reward: what the audit says of it, and what marks its text has.

All of it happens in the thread that writes the records. Equal programs of a task are looked at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

from ascent.rewards.audit import Audited
from ascent.sandbox.types import Outcome, Test
from ascent.tracking.rollouts import RolloutRecord
from ascent.types import Task

_MOST_KEPT = 20_000  # programs

# (task id, program that passes all visible tests) -> what the hidden tests say; None: there is no audit
AskAudit = Callable[[str, str], Future[Audited] | None]


class FindMarkers(Protocol):
    """Names what the text of a program shows."""

    def __call__(
        self, program: str, tests: Sequence[Test], *, entry_point: str | None, language: str
    ) -> Sequence[str] | None:
        """The names, for a task with these visible `tests`; None: it wasn't looked at."""
        ...


class ProgramNotes:
    """Used by one thread."""

    def __init__(self, tasks: Iterable[Task], audited: AskAudit, markers: FindMarkers | None = None) -> None:
        """`tasks` are all that programs are written for; programs of others have no notes. Without `markers` nobody
        looks for any."""
        self._tasks = {task.id: task for task in tasks}
        self._audited, self._find = audited, markers
        self._markers: OrderedDict[tuple[str, str], Sequence[str] | None] = OrderedDict()  # the last used at the end

    def expect(self, programs: Iterable[tuple[str, str]]) -> None:
        """Look at programs (task id, text) that will be recorded soon."""
        for task_id, program in programs:
            if task_id in self._tasks:
                self._markers_of(self._tasks[task_id], program)

    def complete(self, records: Sequence[RolloutRecord]) -> list[RolloutRecord]:
        """The records with their notes. Waits for the audits that are under way."""
        return [self._complete(record) for record in records]

    def _complete(self, record: RolloutRecord) -> RolloutRecord:
        task = self._tasks.get(record.task_id)
        if task is None or record.visible_tests is None:
            return record
        return replace(
            record, audit_outcomes=self._audit_of(task, record), markers=self._markers_of(task, record.program)
        )

    def _audit_of(self, task: Task, record: RolloutRecord) -> list[str] | None:
        if not task.hidden_tests:
            return []
        visible_alone = record.visible_tests == len(record.outcomes) > 0
        if not visible_alone or any(outcome != Outcome.PASSED for outcome in record.outcomes):
            return None
        asked = self._audited(task.id, record.program)
        outcomes = None if asked is None else asked.result()
        return None if outcomes is None else [str(outcome) for outcome in outcomes]

    def _markers_of(self, task: Task, program: str) -> Sequence[str] | None:
        key = task.id, program
        if key in self._markers:
            self._markers.move_to_end(key)
            return self._markers[key]
        found = None
        if self._find is not None:
            tests, name = task.visible_tests, task.entry_point
            found = self._find(program, tests, entry_point=name, language=task.language)
        self._markers[key] = found
        if len(self._markers) > _MOST_KEPT:
            self._markers.popitem(last=False)
        return found
