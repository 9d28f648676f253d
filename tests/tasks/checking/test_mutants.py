"""Mutants: what is changed, that each is another program, and that hostile sources do no harm."""

from __future__ import annotations

import ast
import time

import pytest

from ascent.tasks.checking.mutants import LONGEST_SOURCE, mutants
from ascent.tasks.checking.mutation_operators import OPERATORS

EVERYTHING = '''
from functools import reduce

LIMIT = 10


def f(xs: list[int], *, k: int = 2) -> int:
    """Docstring with 3 words."""
    total = 0
    if not xs and k >= 1:
        return -1
    else:
        total += 1
    for x in xs[1:k]:
        if x < LIMIT:
            continue
        total = total + max(x, 2) * k
    for i in range(k):
        total -= i
        if i == 3:
            break
    names = [str(x).lower() for x in xs if x % 2 == 0]
    return total if names else sorted(xs, reverse=True)[0]


if __name__ == "__main__":
    print(f([1, 2, 3]))
'''


def test_every_kind_of_change_is_made() -> None:
    made = mutants(EVERYTHING, most=1000)
    assert {mutant.operator for mutant in made} == set(OPERATORS)
    sources = [mutant.source for mutant in made]
    assert len(set(sources)) == len(sources)
    original = ast.dump(ast.parse(EVERYTHING))
    for source in sources:
        tree = ast.parse(source)
        assert ast.dump(tree) != original
        assert ast.get_docstring(tree.body[2]) == "Docstring with 3 words."  # type: ignore[arg-type]
        assert ast.unparse(tree.body[-1]) == ast.unparse(ast.parse(EVERYTHING).body[-1]), (
            "a script's part is left alone"
        )


@pytest.mark.parametrize(
    ("source", "operator", "expected"),
    [
        ("def f(a, b):\n    return a + b\n", "arithmetic", "return a - b"),
        ("def f(a, b):\n    return a < b\n", "boundary", "return a <= b"),
        ("def f(a, b):\n    return a == b\n", "negation", "return a != b"),
        ("def f(a, b):\n    return a and b\n", "logic", "return a or b"),
        ("def f(a, b):\n    return a and b\n", "logic", "return b"),
        ("def f():\n    return 7\n", "constant", "return 8"),
        ("def f():\n    return 7\n", "constant", "return 6"),
        ("def f(n):\n    return list(range(n))\n", "bounds", "range(n - 1)"),
        ("def f(xs):\n    return xs[1:]\n", "bounds", "return xs[:]"),
        ("def f(a):\n    return 1 if a else 2\n", "branches", "return 2 if a else 1"),
        ("def f(xs):\n    return [x for x in xs if x]\n", "branches", "return [x for x in xs]"),
        ("def f(xs):\n    return min(xs)\n", "calls", "return max(xs)"),
        ("def f(xs):\n    xs.sort()\n    return xs\n", "statements", "pass"),
    ],
)
def test_a_change(source: str, operator: str, expected: str) -> None:
    assert any(mutant.operator == operator and expected in mutant.source for mutant in mutants(source, most=1000))


def test_the_source_is_left_as_it_was_between_changes() -> None:
    """Each mutant differs from the source in one place: no change is left behind in the next one."""
    lines = ast.unparse(ast.parse(EVERYTHING)).split("\n")
    for mutant in mutants(EVERYTHING, most=1000):
        if mutant.operator in ("arithmetic", "boundary", "constant", "calls"):
            changed = mutant.source.rstrip("\n").split("\n")
            assert len(changed) == len(lines)
            assert sum(a != b for a, b in zip(changed, lines, strict=True)) == 1, mutant.change


def test_no_more_than_asked_and_of_each_kind_alike_and_the_same_again() -> None:
    few = mutants(EVERYTHING, most=9, seed="a")
    assert {mutant.operator for mutant in few} == set(OPERATORS)
    assert few == mutants(EVERYTHING, most=9, seed="a")
    assert few != mutants(EVERYTHING, most=9, seed="b")
    assert mutants(EVERYTHING, most=0) == []


@pytest.mark.parametrize(
    "source",
    [
        "",
        "def f(:",
        "x = " + "(" * 5000 + ")" * 5000,
        "x = " + "-" * 50_000 + "1",
        "x = " + "[" * 90 + "]" * 90,
        "def f():\n" + "".join("    " * (d + 1) + "if a:\n" for d in range(90)) + "    " * 91 + "pass\n",
        "x = " + " + ".join(["1"] * 15_000),
        "\x00",
        "x = 1\n" * LONGEST_SOURCE,
        "x = '\ud800'",
        "x = 9" + "9" * 10_000,
    ],
)
def test_sources_that_hurt(source: str) -> None:
    began = time.process_time()
    assert len(mutants(source, most=5)) <= 5
    assert time.process_time() - began < 5
