"""What is found out about programs in the writer's thread: equal ones once, and an audit where there is one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest
from tests.rewards.test_audit import task
from tests.tracking.test_rollouts import record

from ascent.sandbox.types import Outcome
from ascent.training.records.program_notes import ProgramNotes

pytestmark = pytest.mark.torch


class Markers:
    def __init__(self) -> None:
        self.asked: list[tuple[str, int, str | None, str]] = []

    def __call__(
        self, program: str, tests: Sequence[Any], *, entry_point: str | None, language: str
    ) -> tuple[str, ...]:
        self.asked.append((program, len(tests), entry_point, language))
        return ("exit",) if "exit" in program else ()


def audited(task_id: str, program: str) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(None if program == "fails" else (Outcome.PASSED, Outcome.FAILED, Outcome.FAILED))
    return future


def passes(program: str, **changes: Any) -> Any:
    return record(task_id="inc", program=program, visible_tests=1, outcomes=["passed"], **changes)


def test_programs_are_looked_at_once_also_beforehand() -> None:
    find = Markers()
    notes = ProgramNotes([task()], audited, find)
    notes.expect([("inc", "exit()"), ("inc", "pass"), ("other", "pass")])
    records = notes.complete([passes("exit()"), passes("pass"), passes("pass"), passes("new")])
    assert [each.markers for each in records] == [("exit",), (), (), ()]
    assert find.asked == [(program, 1, "f", "python") for program in ("exit()", "pass", "new")]


def test_what_passes_all_visible_tests_alone_has_an_audit() -> None:
    notes = ProgramNotes([task(), task("bare", hidden=0)], audited)
    rows = [
        passes("a"),
        passes("fails"),
        record(task_id="inc", visible_tests=1, outcomes=["failed"]),
        record(task_id="inc", visible_tests=1, outcomes=["passed"] * 4),  # hidden tests were run
        record(task_id="inc", visible_tests=0, outcomes=["passed"] * 3),
        record(task_id="bare", visible_tests=1, outcomes=["passed"]),
    ]
    found = notes.complete(rows)
    assert [each.audit_outcomes for each in found] == [["passed", "failed", "failed"], None, None, None, None, []]
    assert {each.markers for each in found} == {None}, "nobody looks for any"


def test_completions_without_a_verdict_and_of_other_tasks_stay_as_they_are() -> None:
    rows = [record(task_id="inc"), record(task_id="elsewhere", visible_tests=1, outcomes=["passed"])]
    assert ProgramNotes([task()], audited, Markers()).complete(rows) == rows
