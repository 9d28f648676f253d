"""`tasks.jsonl`: the tasks of a run with their tests as people read them, so that an outcome says what was asked.

A task that has changed when a run is resumed has a line more, with the step since which it counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ascent.errors import InputError
from ascent.sandbox.types import AssertTest, FunctionTest, StdioTest, Test
from ascent.tasks.digests import tasks_digest
from ascent.tracking.run_directory import write_text
from ascent.tracking.texts import as_text
from ascent.types import Task

SCHEMA = "ascent.tasks/1"
LONGEST = 4_000  # characters of an input or an expected value; some tests have megabytes

Split = Literal["train", "held_out"]


@dataclass(frozen=True, slots=True)
class TestLine:
    """A test: `input` is the call, standard input or the assert's code; `expected` the value, standard output, or None
    for an assert; `note` says how they are compared where not plainly. `cut` characters of both were left out."""

    __test__ = False  # for pytest

    kind: str
    input: str
    expected: str | None
    note: str
    cut: int


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task as it counts for steps after `since_step`. `digest` is over all of it, tests uncut."""

    task_id: str
    split: Split
    since_step: int
    digest: str
    family: str
    language: str
    entry_point: str | None
    prompt: str
    prefix: str
    prelude: str
    visible_tests: tuple[TestLine, ...]
    hidden_tests: tuple[TestLine, ...]


def record_tasks(path: Path, train: Sequence[Task], held_out: Sequence[Task], *, step: int) -> None:
    """Write the tasks of a run that begins (`step` 0), or goes on after `step`: those that have changed since are
    added, and what an older start of the run wrote for later steps goes. Raises InputError for another file in its
    place."""
    kept = [line for line in read_tasks(path) if line.since_step < step] if step else []
    known = {line.task_id: (line.split, line.digest) for line in kept}
    asked = [*_lines(train, "train", step), *_lines(held_out, "held_out", step)]
    added = [line for line in asked if known.get(line.task_id) != (line.split, line.digest)]
    lines = (json.dumps({"schema": SCHEMA, **asdict(line)}) for line in (*kept, *added))
    write_text(path, "".join(f"{line}\n" for line in lines))


def read_tasks(path: Path) -> list[TaskLine]:
    """The lines of a run's `tasks.jsonl`; none in a run of an older release. Raises InputError for other content."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    found = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            found.append(_parsed(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}:{number} is not what a run writes: {type(error).__name__}: {error}") from error
    return found


def tasks_at(lines: Iterable[TaskLine], step: int) -> dict[str, TaskLine]:
    """The tasks as they were asked in a step, by id."""
    return {line.task_id: line for line in lines if line.since_step < step or line.since_step == 0}


def line_of(test: Test) -> TestLine:
    """A test as people read it."""
    if isinstance(test, FunctionTest):
        line = TestLine(test.kind, _call(test), repr(test.expected), _how(test), 0)
    elif isinstance(test, StdioTest):
        line = TestLine(test.kind, test.stdin, test.stdout, _tolerance(test.tolerance), 0)
    else:
        line = TestLine(test.kind, "\n".join(part for part in (test.setup, test.code) if part), None, _where(test), 0)
    return _cut(line)


def _lines(tasks: Sequence[Task], split: Split, step: int) -> list[TaskLine]:
    return [
        TaskLine(
            task_id=task.id,
            split=split,
            since_step=step,
            digest=tasks_digest([task]),
            family=task.family,
            language=task.language,
            entry_point=task.entry_point,
            prompt=as_text(task.prompt),
            prefix=task.prefix,
            prelude=task.prelude,
            visible_tests=tuple(map(line_of, task.visible_tests)),
            hidden_tests=tuple(map(line_of, task.hidden_tests)),
        )
        for task in tasks
    ]


def _call(test: FunctionTest) -> str:
    arguments = [*map(repr, test.args), *(f"{name}={value!r}" for name, value in test.kwargs.items())]
    return f"{test.function}({', '.join(arguments)})"


def _how(test: FunctionTest) -> str:
    notes = [
        _tolerance(test.tolerance),
        "in any order" if test.unordered else "",
        f"or [{test.expected!r}]" if test.or_in_list else "",
        "as JSON" if test.as_json else "",
        "" if test.mutated is None else f"arguments afterwards: {test.mutated!r}",
    ]
    return "; ".join(filter(None, notes))


def _tolerance(tolerance: float | None) -> str:
    return "" if tolerance is None else f"tolerance {tolerance:g}" if tolerance else "exact"


def _where(test: AssertTest) -> str:
    return "in the program's own process" if test.in_process else ""


def _cut(line: TestLine) -> TestLine:
    shown, expected = line.input[:LONGEST], None if line.expected is None else line.expected[:LONGEST]
    left_out = len(line.input) - len(shown) + len(line.expected or "") - len(expected or "")
    return replace(line, input=shown, expected=expected, note=line.note[:LONGEST], cut=left_out)


def _parsed(line: Mapping[str, Any]) -> TaskLine:
    if line["schema"] != SCHEMA:
        raise ValueError(f"schema {line['schema']!r}, expected {SCHEMA!r}")
    given = {name: value for name, value in line.items() if name != "schema"}
    tests = {name: tuple(TestLine(**test) for test in given[name]) for name in ("visible_tests", "hidden_tests")}
    return TaskLine(**{**given, **tests})
