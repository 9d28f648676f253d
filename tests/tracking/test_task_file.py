"""`tasks.jsonl`: every test readable, and the tests of each step known also when a run's tasks have changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ascent.errors import InputError
from ascent.sandbox.types import AssertTest, FunctionTest, StdioTest
from ascent.tasks.loading import load_tasks
from ascent.tracking.task_file import LONGEST, line_of, read_tasks, record_tasks, tasks_at
from ascent.types import Task

TASK = Task(
    id="t",
    prompt=({"role": "user", "content": "Write f."},),
    visible_tests=(FunctionTest("f", (1, "a"), [1.0], kwargs={"k": {2}}, tolerance=0.5, unordered=True),),
    hidden_tests=(StdioTest("1\n", "2\n"), AssertTest("assert f(2)", setup="import math")),
    entry_point="f",
)


def test_tests_are_written_as_people_read_them(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    other = replace(TASK, id="u", prompt="text")
    record_tasks(path, [TASK], [other], step=0)
    first, second = read_tasks(path)
    assert (first.task_id, first.split, second.task_id, second.split) == ("t", "train", "u", "held_out")
    assert (first.prompt, second.prompt) == ("<user>\nWrite f.", "text")
    assert first.visible_tests[0].input == "f(1, 'a', k={2})"
    assert first.visible_tests[0].expected == "[1.0]"
    assert first.visible_tests[0].note == "tolerance 0.5; in any order"
    stdio, code = first.hidden_tests
    assert (stdio.input, stdio.expected) == ("1\n", "2\n")
    assert (code.input, code.expected) == ("import math\nassert f(2)", None)
    assert {json.loads(line)["schema"] for line in path.read_text().splitlines()} == {"ascent.tasks/1"}


def test_an_in_place_function_says_what_its_arguments_become() -> None:
    line = line_of(FunctionTest("f", ([2, 1],), None, mutated=([1, 2],), as_json=True, or_in_list=True))
    assert line.expected == "None"
    assert line.note == "or [None]; as JSON; arguments afterwards: ([1, 2],)"


def test_long_values_are_cut_and_say_so() -> None:
    line = line_of(StdioTest("x" * (LONGEST + 7), "y" * (LONGEST + 5)))
    assert len(line.input) == len(line.expected or "") == LONGEST
    assert line.cut == 12
    assert line_of(StdioTest("x" * LONGEST, "")).cut == 0


def test_the_builtin_tasks_can_be_written(tmp_path: Path) -> None:
    tasks = load_tasks("builtin").tasks[:50]
    record_tasks(tmp_path / "tasks.jsonl", tasks, [], step=0)
    lines = read_tasks(tmp_path / "tasks.jsonl")
    assert [len(line.visible_tests) + len(line.hidden_tests) for line in lines] == [len(task.tests) for task in tasks]
    assert all(test.expected is not None and test.input for line in lines for test in line.hidden_tests)


def test_a_run_that_goes_on_with_changed_tasks_knows_both(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    same, changed = replace(TASK, id="same"), replace(TASK, id="changed")
    record_tasks(path, [same, changed], [], step=0)
    new = replace(changed, hidden_tests=TASK.hidden_tests[:1])
    for _ in range(2):  # resumed twice from the same checkpoint
        record_tasks(path, [same, new], [], step=4)
    lines = read_tasks(path)
    assert [(line.task_id, line.since_step) for line in lines] == [("same", 0), ("changed", 0), ("changed", 4)]
    assert len(tasks_at(lines, 4)["changed"].hidden_tests) == 2
    assert len(tasks_at(lines, 5)["changed"].hidden_tests) == 1
    record_tasks(path, [same, changed], [], step=2)
    assert [line.since_step for line in read_tasks(path)] == [0, 0], "what was asked beyond the checkpoint is gone"


@pytest.mark.parametrize("content", ['{"schema": "ascent.tasks/2"}', "{", "[]", '{"schema": "ascent.tasks/1"}'])
def test_another_file_is_refused_with_its_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tasks.jsonl"
    record_tasks(path, [TASK], [], step=0)
    path.write_text(path.read_text() + content + "\n")
    with pytest.raises(InputError, match=r"tasks\.jsonl:2 is not what a run writes"):
        read_tasks(path)


def test_a_run_of_an_older_release_has_none(tmp_path: Path) -> None:
    assert read_tasks(tmp_path / "tasks.jsonl") == []
