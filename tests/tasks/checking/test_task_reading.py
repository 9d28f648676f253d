"""What reading alone finds: cases, neighbours, prompts that give tests away, tasks that stand twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascent.sandbox.types import AssertTest, FunctionTest, StdioTest
from ascent.tasks.checking.cases import UNKNOWN, cases
from ascent.tasks.checking.duplicates import duplicates
from ascent.tasks.checking.given_away import given_away, repeated_tests
from ascent.tasks.checking.neighbours import changes, literals, neighbours
from ascent.tasks.checking.probe import read_answers, values
from ascent.tasks.checking.trivial import lookup_program, trivial_programs
from ascent.types import Task


def task(id: str = "t", prompt: Any = "Add one to n.", **fields: Any) -> Task:
    given: dict[str, Any] = {
        "visible_tests": (FunctionTest("f", (1,), 2),),
        "hidden_tests": (FunctionTest("f", (41,), 42), FunctionTest("f", (-1,), 0)),
        "entry_point": "f",
        "reference": "def f(n):\n    return n + 1\n",
        **fields,
    }
    return Task(id, prompt, **given)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("assert f(1, [2]) == 3", [((1, [2]), {}, 3)]),
        ("assert 3 == f(1)", [((1,), {}, 3)]),
        ("candidate = f\nassert candidate('a', k=2) is None", [(("a",), {"k": 2}, None)]),
        ("assert not f(-1)", [((-1,), {}, False)]),
        ("assert f(1) < 3", [((1,), {}, UNKNOWN)]),
        ("assert f(1) == g(2)", [((1,), {}, UNKNOWN)]),
        ("assert f(x) == 3", []),
        ("assert abs(f(1) - 2.5) < 1e-6", []),
        ("assert f(**{'a': 1}) == 2", []),
        ("f(1) ==", []),
    ],
)
def test_cases_of_asserts(code: str, expected: list[Any]) -> None:
    found = cases([AssertTest(code)], "f")
    assert [(case.args, case.kwargs, case.expected) for case in found] == expected


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(plain)
def test_changes_keep_the_type(value: Any) -> None:
    for other in changes(value):
        assert type(other) is type(value)


@given(st.lists(st.tuples(st.integers(-5, 5), st.lists(st.integers(0, 9), max_size=3)), min_size=1, max_size=4))
def test_neighbours_are_new_and_not_many(args: list[tuple[int, list[int]]]) -> None:
    known = cases([FunctionTest("f", each, None) for each in args], "f")
    found = neighbours(known, most=20, seed="s")
    asked = [case.asked for case in found]
    assert len(asked) == len(set(asked)) <= 20
    assert not set(asked) & {case.asked for case in known}
    assert found == neighbours(known, most=20, seed="s")


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ("Add one. For example, f(41) is 42 and f( -1 ) is 0.", "tests-in-prompt"),
        ("Add one.\n>>> f(41)\n42", "tests-in-prompt"),
        ("Add one. f(40) is 41. Think of 41 and 42.", None),
        (({"role": "user", "content": "Add one: f(41)"}, {"role": "user", "content": "f(-1)"}), "tests-in-prompt"),
    ],
)
def test_hidden_tests_in_the_prompt(prompt: Any, kind: str | None) -> None:
    found = [finding.kind for finding in given_away(task(prompt=prompt))]
    assert found == ([] if kind is None else [kind])


def test_values_that_nobody_writes_by_chance_count_without_the_call() -> None:
    about = task(hidden_tests=(FunctionTest("f", ([3, 1, 2, 7],), [1, 2, 3, 7]),))
    assert [each.kind for each in given_away(replace(about, prompt="[3,1,2,7] becomes [1,2,3,7]"))] == [
        "tests-in-prompt"
    ]
    assert given_away(replace(about, prompt="[3,1,2,7] becomes sorted")) == []


def test_one_example_of_many_hidden_tests_is_a_note() -> None:
    hidden = tuple(FunctionTest("f", (n,), n + 1) for n in range(10, 20))
    assert [each.level for each in given_away(task(prompt="f(11) is 12", hidden_tests=hidden))] == ["note"]


def test_the_solution_in_the_prompt() -> None:
    reference = "def f(n):\n    total = n + 1\n    return total\n"
    found = given_away(task(prompt="Write f. Hint: total = n + 1; return total", reference=reference))
    assert found == [], "a semicolon is other text"
    found = given_away(task(prompt="Write f.\n    total = n + 1\n    return total", reference=reference))
    assert [each.kind for each in found] == ["solution-in-prompt"]


def test_stdio_tests_in_the_prompt() -> None:
    hidden = (StdioTest("4\n11 22 33 44\n", "110\n"),)
    asked = task(visible_tests=(), hidden_tests=hidden, entry_point=None, prompt="Input:\n4\n11 22 33 44\nOutput: 110")
    assert [each.kind for each in given_away(asked)] == ["tests-in-prompt"]


def test_hidden_tests_that_ask_nothing_new() -> None:
    visible = (FunctionTest("f", (1,), 2),)
    assert [each.kind for each in repeated_tests(task(hidden_tests=()))] == ["no-hidden-tests"]
    assert [each.kind for each in repeated_tests(task(hidden_tests=visible))] == ["hidden-repeats-visible"]
    assert repeated_tests(task()) == []


LONG = "Write a function that takes a list of whole numbers and gives back the largest of those that are even"


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (task("b", prompt="add  ONE to n.", reference=None, hidden_tests=()), "the same prompt"),
        (task("b", prompt="Increase.", reference="def g(m):\n    return m + 1", hidden_tests=()), "the same solution"),
        (task("b", prompt="Increase.", reference=None), "the same tests"),
        (task("b", prompt="Increase.", reference=None, hidden_tests=()), None),
        (task("b", prompt="Increase.", reference="def g(m):\n    return m + 2", hidden_tests=()), None),
    ],
)
def test_duplicates(other: Task, why: str | None) -> None:
    over, within = duplicates([task("a")], [other]), duplicates([task("a"), other], [])
    if why is None:
        assert not over
        assert not within
        return
    assert [(each.task_id, each.kind, each.level) for each in over] == [("b", "duplicate-over-split", "warning")]
    assert why in over[0].what
    assert over[0].evidence == ("a",)
    assert [(each.kind, each.level) for each in within] == [("duplicate", "note")]


def test_nearly_equal_prompts() -> None:
    apart = {"reference": None, "hidden_tests": ()}
    one = task("a", prompt=LONG, **apart)
    close = task("b", prompt=f"{LONG}.", **apart)
    far = task("c", prompt=LONG.replace("largest", "smallest").replace("even", "odd"), **apart)
    assert [each.task_id for each in duplicates([one], [close, far])] == ["b"]
    assert "nearly the same prompt" in duplicates([one], [close])[0].what


def test_alike_pairs_are_those_of_a_plain_comparison() -> None:
    """Prefix filtering loses no pair."""
    import random

    from ascent.tasks.checking.duplicates import _alike, _shingles

    draw = random.Random(1)
    words = [f"w{number}" for number in range(30)]
    base = [[draw.choice(words) for _ in range(40)] for _ in range(6)]
    tasks = []
    for number in range(120):
        text = list(draw.choice(base))
        for _ in range(draw.randint(0, 6)):
            text[draw.randrange(40)] = draw.choice(words)
        tasks.append(task(str(number), prompt=" ".join(text)))
    shingles = [_shingles(each) for each in tasks]
    plainly = {
        (tasks[a].id, tasks[b].id)
        for b in range(len(tasks))
        for a in range(b)
        if len(shingles[a] & shingles[b]) >= 0.8 * len(shingles[a] | shingles[b])
    }
    assert len(plainly) > 20
    assert set(_alike(tasks)) == plainly


def test_what_a_probe_printed_is_read_as_data() -> None:
    output = "noise\n0 [1, 2]\n1 raised ValueError\n2 __import__('os').system('true')\n3 'a\\nb'\n4 (cut"
    answers = read_answers(output)
    assert set(answers) == {0, 1, 2, 3}
    assert values(answers) == {0: [1, 2], 3: "a\nb"}


def test_trivial_programs_are_python_and_know_the_answers() -> None:
    import ast

    about = task(visible_tests=(FunctionTest("Solution.add", (float("inf"),), [float("nan")]),))
    programs = trivial_programs(about)
    for program in programs:
        ast.parse(program.source)
    assert any("42" in program.what for program in programs)
    assert lookup_program(about) is not None
    ast.parse(lookup_program(about) or "")
    assert trivial_programs(task(language="rust", visible_tests=(StdioTest("", ""),), hidden_tests=()))


def test_literals_of_a_program() -> None:
    source = 'def f(n):\n    """Docstring."""\n    return "x" if n > 10 and n != 10 else 2.5\n'
    assert set(literals(source)) == {9, 10, 11, "x", 2.5}
    assert literals("def f(:") == []
    near = neighbours(
        cases([FunctionTest("f", (3,), None), FunctionTest("f", (50,), None)], "f"), most=30, source=source
    )
    assert {9, 10, 11} <= {case.args[0] for case in near}, "where the program's own boundary is"
