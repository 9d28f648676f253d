"""Tasks and their tests as they stand in tasks.jsonl, and each test beside what a program made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ShownTest:
    """A test as a person reads it: the call, standard input or assertion; `expected` is None for an assertion. `note`
    says how values are compared where that isn't plain equality; `cut` counts characters that were left out."""

    input: str
    expected: str | None
    note: str
    cut: int


@dataclass(frozen=True, slots=True)
class ShownTask:
    """A task as it counts for steps after `since_step`."""

    task_id: str
    split: str
    since_step: int
    family: str
    language: str
    prompt: str
    visible: tuple[ShownTest, ...]
    hidden: tuple[ShownTest, ...]


@dataclass(frozen=True, slots=True)
class JudgedTest:
    """One test and its outcome. `test` is None where the run wrote no tasks; `visible` is None where it isn't known;
    `paid` says whether the reward ran it (an audit doesn't pay)."""

    number: int
    visible: bool | None
    test: ShownTest | None
    outcome: str | None
    paid: bool


def tasks_from_lines(lines: Iterable[Mapping[str, Any]]) -> dict[str, list[ShownTask]]:
    """Each task's versions in order of the step since which they count."""
    found: dict[str, list[ShownTask]] = {}
    for line in lines:
        task = _task(line)
        found.setdefault(task.task_id, []).append(task)
    for versions in found.values():
        versions.sort(key=lambda task: task.since_step)
    return found


def task_at(tasks: Mapping[str, Sequence[ShownTask]], task_id: str, step: int) -> ShownTask | None:
    """The version of a task that a completion of `step` answers; the first one for evaluations before training."""
    versions = tasks.get(task_id)
    if not versions:
        return None
    return next((task for task in reversed(versions) if task.since_step < step), versions[0])


def judged_tests(task: ShownTask | None, row: Mapping[str, Any]) -> list[JudgedTest]:
    """The tests of a completion's task with their outcomes: visible ones, then hidden ones.

    `row` is a row of a rollout file: outcomes of visible tests come first in `outcomes` (`visible_tests` of them), and
    hidden ones after them, or in `audit_outcomes`. A test that nobody ran has no outcome.
    """
    outcomes = list(row.get("outcomes") or ())
    visible = row.get("visible_tests")
    if visible is None:  # an older run: whose outcome is whose is only known where the numbers agree
        whole = task is not None and len(task.visible) + len(task.hidden) == len(outcomes)
        if task is None or not whole:
            return [JudgedTest(place, None, None, outcome, True) for place, outcome in enumerate(outcomes, start=1)]
        visible = len(task.visible)
    audit = row.get("audit_outcomes")
    return [
        *_judged(True, task.visible if task else (), outcomes[:visible], paid=True),
        *_judged(
            False,
            task.hidden if task else (),
            outcomes[visible:] if audit is None else list(audit),
            paid=audit is None,
        ),
    ]


def _judged(visible: bool, tests: Sequence[ShownTest], outcomes: Sequence[str], *, paid: bool) -> list[JudgedTest]:
    return [
        JudgedTest(
            place + 1,
            visible,
            tests[place] if place < len(tests) else None,
            outcomes[place] if place < len(outcomes) else None,
            paid and place < len(outcomes),
        )
        for place in range(max(len(tests), len(outcomes)))
    ]


def _task(line: Mapping[str, Any]) -> ShownTask:
    since = line.get("since_step")
    return ShownTask(
        task_id=str(line["task_id"]),
        split=str(line.get("split", "")),
        since_step=since if isinstance(since, int) else 0,
        family=str(line.get("family", "")),
        language=str(line.get("language", "python")),
        prompt=str(line.get("prompt", "")),
        visible=_tests(line.get("visible_tests")),
        hidden=_tests(line.get("hidden_tests")),
    )


def _tests(value: Any) -> tuple[ShownTest, ...]:
    return tuple(
        ShownTest(
            str(test.get("input", "")),
            None if test.get("expected") is None else str(test["expected"]),
            str(test.get("note", "")),
            test["cut"] if isinstance(test.get("cut"), int) else 0,
        )
        for test in (value if isinstance(value, list) else ())
        if isinstance(test, dict)
    )
