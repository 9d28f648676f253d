"""A loop, written as a comprehension: over the numbers below n, or over a list with a condition."""

from __future__ import annotations

import random
from collections.abc import Iterable

from ascent.tasks.builtin.template import Arguments, Filling, Template, Word
from ascent.tasks.builtin.words import ABOVE, BELOW, DIGITS, MINUS, PLUS, TIMES


def _count(items: Iterable[int]) -> int:
    return sum(1 for _ in items)


_ADDED, _COUNTED = "sum(x for x in xs if x <cmp> <k>)", "sum(1 for x in xs if x <cmp> <k>)"
_COLLECTED = "[x for x in xs if x <cmp> <k>]"
_KEEP_SUM = Word("sum", _ADDED, sum, "the sum of all x", "add up", other=_COLLECTED)
_KEEP_LIST = Word("list", _COLLECTED, list, "a list of all x", "collect", other=_ADDED)
_KEEP_COUNT = Word("count", _COUNTED, _count, "the number of x", "count", other=_ADDED)

_RANGE_ADDED, _RANGE_COLLECTED = "sum(i <op> <k> for i in range(n))", "[i <op> <k> for i in range(n)]"
_RANGE_SUM = Word("sum", _RANGE_ADDED, sum, "the sum of", "Add up", other=_RANGE_COLLECTED)
_RANGE_LIST = Word("list", _RANGE_COLLECTED, list, "a list of", "Collect", other=_RANGE_ADDED)


def _edges_of_keep(filling: Filling) -> list[Arguments]:
    k = filling["k"]
    return [([k, k + 1, k - 1],), ([],), ([k],), ([k + 1, k + 1, -2],), ([k - 1, 0, 20],)]


def _draw_keep(rng: random.Random, filling: Filling) -> Arguments:
    k = filling["k"]
    return ([k + rng.choice((-9, -4, -2, -1, 0, 1, 2, 5, 8)) for _ in range(rng.randint(2, 6))],)


def _kept(filling: Filling, xs: list[int]) -> object:
    return filling["agg"].function(x for x in xs if filling["cmp"].function(x, filling["k"]))


def _ranged(filling: Filling, n: int) -> object:
    return filling["agg"].function(filling["op"].function(i, filling["k"]) for i in range(n))


TEMPLATES = (
    Template(
        family="loops",
        name="keep",
        arguments="xs",
        slots={"agg": (_KEEP_SUM, _KEEP_LIST, _KEEP_COUNT), "cmp": (ABOVE, BELOW), "k": DIGITS},
        phrasings=(
            "Return <agg.join> in xs with x <cmp.join> <k>.",
            "Go through xs and <agg.alt> each x <cmp.alt> <k>.",
            "For all x in xs <cmp.join> <k>, <agg.alt> x.",
        ),
        solution="<agg>",
        wrong=(
            "[x <cmp> <k> for x in xs]",
            "sum(xs)",
        ),
        function=_kept,
        edges=_edges_of_keep,
        draw=_draw_keep,
    ),
    Template(
        family="loops",
        name="range",
        arguments="n",
        slots={"agg": (_RANGE_SUM, _RANGE_LIST), "op": (PLUS, MINUS, TIMES), "k": DIGITS},
        phrasings=(
            "Return <agg.join> i <op.join> <k> for each i below n.",
            "<agg.alt> i <op.alt> <k> for i from 0 to n - 1.",
            "For i in range n, return <agg.join> i <op.join> <k>.",
        ),
        solution="<agg>",
        wrong=(
            "sum(i <op> <k> for i in range(n + 1))",
            "n <op> <k>",
        ),
        function=_ranged,
        edges=lambda filling: [(3,), (0,), (1,), (filling["k"] + 10,)],
        draw=lambda rng, filling: (rng.randint(2, 15),),
    ),
)
