"""The built-in tasks: their tests tell right from wrong; what is held out is unseen, made of seen parts."""

from __future__ import annotations

import copy
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import pytest

from ascent.errors import InputError
from ascent.sandbox.types import FunctionTest, Test
from ascent.tasks.builtin import FAMILIES, BuiltinTask, builtin_tasks, held_out_builtin, instruct_tasks
from ascent.tasks.loading import load_split, load_tasks
from ascent.tasks.prompts import ends_in_fence, is_completion_task, with_prompt

TASKS = builtin_tasks(0)
DISTINCT = [task for task in TASKS if task.phrasing == 0]


def passes(program: str, tests: Iterable[Test]) -> list[bool]:
    """Which tests the program passes: by value and by type (our own programs, so plain exec)."""
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102
    return [_passes(names, test) for test in tests]


def _passes(names: dict[str, Any], test: Test) -> bool:
    assert isinstance(test, FunctionTest)
    try:
        result = names[test.function](*copy.deepcopy(test.args))
    except Exception:  # noqa: BLE001 - whatever the wrong program raises, it failed
        return False
    return bool(result == test.expected) and type(result) is type(test.expected)


def test_there_are_enough() -> None:
    assert len(DISTINCT) >= 120
    assert len({task.task.id for task in TASKS}) == len({task.task.prompt for task in TASKS}) == len(TASKS)
    assert {task.task.family for task in TASKS} == set(FAMILIES)
    assert len(FAMILIES) >= 6
    phrasings = Counter((task.template, task.parameters) for task in TASKS)
    assert min(phrasings.values()) >= 3
    assert len({task.task.reference for task in TASKS}) == len(DISTINCT)


@pytest.mark.parametrize("family", FAMILIES)
def test_reference_passes_and_mistakes_fail(family: str) -> None:
    for task in DISTINCT:
        if task.task.family != family:
            continue
        assert all(passes(str(task.task.reference), task.task.tests)), task.task.id
        assert len(task.wrong_solutions) >= 4
        for wrong in task.wrong_solutions:
            assert not all(passes(task.task.prefix + wrong, task.task.hidden_tests)), (task.task.id, wrong)


def test_no_constant_passes_the_visible_tests() -> None:
    for task in DISTINCT:
        results = [repr(test.expected) for test in task.task.visible_tests if isinstance(test, FunctionTest)]
        assert len(set(results)) > 1, task.task.id


def test_mistakes_keep_their_place() -> None:
    mistakes = defaultdict(set)
    for task in DISTINCT:
        mistakes[task.template].add(len(task.wrong_solutions))
    assert all(len(counts) == 1 for counts in mistakes.values())


def test_tests_are_distinct_and_enough() -> None:
    for task in TASKS:
        assert len(task.task.visible_tests) >= 3
        assert len(task.task.hidden_tests) >= 5
        inputs = [repr(test.args) for test in task.task.tests if isinstance(test, FunctionTest)]
        assert len(set(inputs)) == len(inputs), task.task.id


def test_phrasings_share_tests_and_solution() -> None:
    variants = defaultdict(list)
    for task in TASKS:
        variants[task.template, task.parameters].append(task)
    for same in variants.values():
        assert len({task.task.reference for task in same}) == 1
        assert all(task.task.tests == same[0].task.tests for task in same)


def test_same_seed_same_tasks() -> None:
    assert builtin_tasks(0) == TASKS
    other = builtin_tasks(1)
    assert [task.task.prompt for task in other] == [task.task.prompt for task in TASKS]
    assert sum(a.task.tests != b.task.tests for a, b in zip(TASKS, other, strict=True)) > 0.9 * len(TASKS)
    for task in other[::40]:
        assert all(passes(str(task.task.reference), task.task.tests)), task.task.id


def test_prompt_is_the_head_of_a_program() -> None:
    for task in TASKS:
        prompt = task.task.prompt
        assert isinstance(prompt, str)
        assert re.fullmatch(r"# \S.*[.?]\ndef f\([a-z, ]+\):", prompt), prompt
        assert len(prompt) < 100
        assert is_completion_task(task.task)
        assert with_prompt(task.task, chat=False).prompt == prompt
        assert re.fullmatch(r"\n    return .+", task.solution)
        assert task.task.reference == task.task.prefix + task.solution
        assert "<" not in prompt  # every slot is filled
        assert not re.search(r"<\w+>", task.solution)


def values(tasks: Iterable[BuiltinTask]) -> set[tuple[str, str, str | int]]:
    return {(task.template, slot, value) for task in tasks for slot, value in task.parameters}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.4])
def test_held_out_is_unseen_but_made_of_seen_parts(seed: int, share: float) -> None:
    train, held_out = held_out_builtin(seed, share)
    ids = Counter(task.task.id for task in train + held_out)
    assert ids == Counter(task.task.id for task in builtin_tasks(seed))
    assert not {task.task.reference for task in train} & {task.task.reference for task in held_out}
    assert not {(t.template, t.parameters) for t in train} & {(t.template, t.parameters) for t in held_out}
    assert values(held_out) <= values(train)
    assert {task.template for task in held_out} == {task.template for task in train}
    assert share - 0.03 < len(held_out) / len(TASKS) < share + 0.03


def test_another_seed_holds_out_others() -> None:
    first, second = ({task.task.id for task in held_out_builtin(seed)[1]} for seed in (0, 1))
    assert first != second


@pytest.mark.parametrize("share", [0.0, 0.6, -1.0])
def test_impossible_share(share: float) -> None:
    with pytest.raises(InputError, match="share"):
        held_out_builtin(0, share)


@pytest.mark.parametrize("built", instruct_tasks(), ids=lambda built: built.task.entry_point)
def test_instruct_task(built: BuiltinTask) -> None:
    task = built.task
    assert all(passes(str(task.reference), task.tests))
    assert len(built.wrong_solutions) >= 2
    for wrong in built.wrong_solutions:
        assert not all(passes(wrong, task.hidden_tests)), wrong
    assert len(task.visible_tests) == 3
    assert len(task.hidden_tests) >= 5
    results = [repr(test.expected) for test in task.visible_tests if isinstance(test, FunctionTest)]
    assert len(set(results)) > 1


def test_instruct_prompts() -> None:
    tasks = [built.task for built in instruct_tasks()]
    assert len({task.id for task in tasks}) == 30
    assert Counter(task.family for task in tasks) == dict.fromkeys(FAMILIES, 5)
    for task in tasks:
        text = with_prompt(task, chat=False)
        assert re.match(r"Write a Python function `\w+\([a-z, ]+\)` that returns \S.*\.\n", str(text.prompt))
        assert str(text.prompt).count(f"assert {task.entry_point}(") == 3
        assert "is called" not in str(text.prompt)
        assert text.prefix == ""
        assert ends_in_fence(str(text.prompt))


def test_sources() -> None:
    assert len(load_tasks("builtin").tasks) == len(TASKS)
    assert {task.family for task in load_tasks("builtin").tasks[:40]} == set(FAMILIES)
    assert {task.family for task in load_tasks("builtin:loops").tasks} == {"loops"}
    assert len(load_tasks("builtin:instruct").tasks) == 30
    with pytest.raises(InputError, match="no built-in family 'loop'") as caught:
        load_tasks("builtin:loop")
    assert "dictionaries" in caught.value.mend


def test_split_of_a_source() -> None:
    loaded, train, held_out = load_split("builtin", 0.2, 3)
    assert sorted(task.id for task in train + held_out) == sorted(task.id for task in loaded.tasks)
    assert {task.id for task in held_out} == {task.task.id for task in held_out_builtin(3)[1]}
    _, train, held_out = load_split("builtin:strings", 0.2, 3)
    assert {task.family for task in train + held_out} == {"strings"}
    assert [len(half) for half in load_split("builtin:instruct", 10, 3)[1:]] == [20, 10]
    assert load_split("builtin", 0, 3)[2] == ()


@pytest.mark.parametrize(
    ("source", "count"), [("builtin", 1), ("builtin", 50), ("builtin", 250), ("builtin:lists", 30)]
)
def test_a_number_of_tasks_is_held_out_with_all_that_shows_their_solutions(source: str, count: int) -> None:
    loaded, train, held_out = load_split(source, count, 3)
    assert len(held_out) == count
    assert not {task.reference for task in train} & {task.reference for task in held_out}
    assert 0 <= len(loaded.tasks) - len(train) - count < 3  # further phrasings of the last one
    assert {task.id for task in held_out} <= {task.id for task in load_split(source, count + 30, 3)[2]}
    if count <= 250:
        assert {task.id for task in held_out} <= {task.task.id for task in held_out_builtin(3)[1]}


def test_more_than_can_be_held_out() -> None:
    with pytest.raises(InputError, match=r"of these 240 built-in tasks at most \d+ can be held out"):
        load_split("builtin:lists", 121, 3)
    with pytest.raises(InputError, match="must not be negative"):
        load_split("builtin", -1, 3)
