"""Two numbers, and a condition on the first that decides what is returned."""

from __future__ import annotations

import random

from ascent.tasks.builtin.template import Arguments, Filling, Template
from ascent.tasks.builtin.words import (
    ABOVE,
    AT_LEAST,
    AT_MOST,
    BELOW,
    DIGITS,
    MINUS,
    PLUS,
    TIMES,
    draw_near,
    draw_number,
)


def _edges(filling: Filling) -> list[Arguments]:
    k = filling["k"]
    return [(k, 30), (k, -11), (k + 1, -4), (k - 1, 25), (0, 5)]


def _draw_near(rng: random.Random, filling: Filling) -> Arguments:
    return draw_near(rng, filling["k"]), draw_number(rng)


def _draw_multiple(rng: random.Random, filling: Filling) -> Arguments:
    k = filling["k"]
    return k * rng.randint(-4, 4) + rng.choice((0, 0, 1, k - 1)), rng.randint(2, 20)


TEMPLATES = (
    Template(
        family="conditionals",
        name="choose",
        arguments="a, b",
        slots={"cmp": (ABOVE, BELOW, AT_LEAST, AT_MOST), "k": DIGITS},
        phrasings=(
            "Return a if a is <cmp.join> <k>, else b.",
            "If a is <cmp.alt> <k> return a, otherwise b.",
            "Return b, or a if a is <cmp.join> <k>.",
        ),
        solution="a if a <cmp> <k> else b",
        wrong=("b if a <cmp> <k> else a", "a", "b"),
        function=lambda filling, a, b: a if filling["cmp"].function(a, filling["k"]) else b,
        edges=_edges,
        draw=_draw_near,
    ),
    Template(
        family="conditionals",
        name="divisible",
        arguments="a, b",
        slots={"op": (PLUS, MINUS, TIMES), "k": DIGITS},
        phrasings=(
            "Return a <op.join> b if a is divisible by <k>, else a.",
            "If <k> divides a return a <op.join> b, otherwise a.",
            "When a is a multiple of <k> return a <op.alt> b, else a.",
        ),
        solution="a <op> b if a % <k> == 0 else a",
        wrong=(
            "a if a % <k> == 0 else a <op> b",
            "a <op> b",
            "a",
        ),
        function=lambda filling, a, b: filling["op"].function(a, b) if a % filling["k"] == 0 else a,
        edges=_edges,
        draw=_draw_multiple,
    ),
)
