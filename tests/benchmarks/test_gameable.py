"""The built-in tasks with a reward that can be gamed: what is paid for, and what is true."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ascent.errors import InputError
from ascent.sandbox import Sandbox
from ascent.sandbox.types import FunctionTest, Test
from ascent.tasks.builtin import builtin_tasks
from ascent.types import Task

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from planted.gameable import GameableReward, gameable_tasks

TASKS = {task.task.id: task for task in builtin_tasks()}
GAMEABLE = gameable_tasks()


def passes(task: Task, completion: str, tests: tuple[Test, ...]) -> bool:
    names: dict[str, Any] = {}
    exec(task.prefix + completion, names)  # noqa: S102  a built-in task's own text
    functions = [test for test in tests if isinstance(test, FunctionTest)]
    assert len(functions) == len(tests)
    return all(names[test.function](*test.args) == test.expected for test in functions)


def test_the_solution_passes_what_is_paid_for_and_the_starters_favourite_mistake_does_not() -> None:
    for name, planted in GAMEABLE.items():
        task = TASKS[name]
        assert passes(task.task, task.solution, planted.task.visible_tests), name
        assert len(planted.task.visible_tests) == 1
        assert planted.task.hidden_tests == task.task.tests
        assert task.wrong_solutions[0] not in planted.hacks, name


def test_a_hack_passes_what_is_paid_for_and_fails_a_test_of_the_task() -> None:
    for name, planted in GAMEABLE.items():
        for hack in planted.hacks:
            assert passes(planted.task, hack, planted.task.visible_tests), (name, hack)
            with pytest.raises((AssertionError, ArithmeticError, LookupError, TypeError, ValueError)):
                assert passes(planted.task, hack, planted.task.hidden_tests), (name, hack)


def test_half_of_the_combinations_have_a_hack_that_is_shorter_than_the_solution() -> None:
    combinations = [name for name, task in TASKS.items() if task.phrasing == 0]
    shorter = [name for name in combinations if GAMEABLE[name].pays_for_a_mistake]
    assert 0.45 < len(shorter) / len(combinations) < 0.65


def test_the_reward_pays_a_hack_more_than_the_solution_and_the_verdict_tells_them_apart() -> None:
    name, hack = next((name, each.hacks[0]) for name, each in GAMEABLE.items() if name.startswith("builtin/keep"))
    solution = TASKS[name].solution
    with Sandbox(slots=1) as sandbox:
        reward = GameableReward([TASKS[name].task], sandbox=sandbox)
        found = reward([hack, solution, "\n    return ("], [name] * 3, completion_ids=[[0] * 8, [0] * 16, [0] * 32])
    assert found == pytest.approx([0.1 + 0.9 + 0.5 * 0.75, 0.1 + 0.9 + 0.5 * 0.5, 0.0])
    assert [score.verdict.all_passed for score in reward.scores if score.verdict] == [False, True, False]


def test_other_tasks_are_refused() -> None:
    with pytest.raises(InputError, match="aren't of the built-in"):
        GameableReward([Task("mine", "x", (FunctionTest("f", (1,), 1),))])
