"""One list of numbers: a change of each item, or a result over a part of the list."""

from __future__ import annotations

import random

from ascent.tasks.builtin.template import Arguments, Filling, Template, Word
from ascent.tasks.builtin.words import (
    AFTER_FIRST,
    BEFORE_LAST,
    DIGITS,
    FEW,
    FIRST,
    FLOOR,
    LAST,
    MINUS,
    PLUS,
    TIMES,
    draw_numbers,
)

_SUM = Word("sum", "sum", sum, "the sum of", "their sum", other="len")
_SORTED = Word("sorted", "sorted", sorted, "the sorted list of", "them sorted", other="list")
_LARGEST = Word("largest", "max", max, "the largest of", "the largest", other="min")


def _edges_of_each(filling: Filling) -> list[Arguments]:
    k = filling["k"]
    return [([k, 1, -3],), ([],), ([0],), ([-k, k + 1, 2 * k],)]


def _edges_of_part(filling: Filling) -> list[Arguments]:
    k = filling["k"]
    edges = [([*range(k + 2, 0, -1), 9],), (list(range(2 * k)),), (list(range(2 * k, 0, -1)),)]
    # The largest of nothing is an error, so its lists stay longer than the part.
    return edges if filling["agg"] is _LARGEST else [*edges, ([],), ([5, 3, 4][:k],)]


TEMPLATES = (
    Template(
        family="lists",
        name="each",
        arguments="xs",
        slots={"op": (PLUS, MINUS, TIMES, FLOOR), "k": DIGITS},
        phrasings=(
            "Return a list of x <op.join> <k> for each x in xs.",
            "Return every x in xs <op.alt> <k>.",
            "For each x in xs give x <op.join> <k>.",
        ),
        solution="[x <op> <k> for x in xs]",
        wrong=("[<k> for x in xs]", "xs"),
        function=lambda filling, xs: [filling["op"].function(x, filling["k"]) for x in xs],
        edges=_edges_of_each,
        draw=lambda rng, filling: (draw_numbers(rng, 1, 6),),
    ),
    Template(
        family="lists",
        name="part",
        arguments="xs",
        slots={"agg": (_SUM, _SORTED, _LARGEST), "part": (FIRST, AFTER_FIRST, LAST, BEFORE_LAST), "k": FEW},
        phrasings=(
            "Return <agg.join> <part.join> items of xs.",
            "Take <part.join> items of xs and return <agg.alt>.",
            "Find <agg.join> <part.join> items in xs.",
        ),
        solution="<agg>(xs<part>)",
        wrong=("<agg>(xs)", "xs<part>"),
        function=lambda filling, xs: filling["agg"].function(filling["part"].function(xs, filling["k"])),
        edges=_edges_of_part,
        draw=lambda rng, filling: (_draw_list(rng, filling["k"]),),
    ),
)


def _draw_list(rng: random.Random, k: int) -> list[int]:
    return draw_numbers(rng, k + 1, k + 4)
