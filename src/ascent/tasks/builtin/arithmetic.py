"""Two numbers and a constant."""

from __future__ import annotations

import random

from ascent.tasks.builtin.template import Arguments, Filling, Template
from ascent.tasks.builtin.words import DIGITS, FLOOR, MINUS, MODULO, PLUS, draw_number


def _edges(filling: Filling) -> list[Arguments]:
    k = filling["k"]
    return [(k + 1, 2), (0, 0), (k, 1), (-k, 3), (1, -5)]


def _draw(rng: random.Random, filling: Filling) -> Arguments:
    del filling
    return draw_number(rng), draw_number(rng)


TEMPLATES = (
    Template(
        family="arithmetic",
        name="scale",
        arguments="a, b",
        slots={"op": (PLUS, MINUS), "k": DIGITS},
        phrasings=(
            "Return a times <k> <op.join> b.",
            "Multiply a by <k>, then <op.verb> b.",
            "Return <k> times a, <op.alt> b.",
        ),
        solution="a * <k> <op> b",
        wrong=("a <op> b * <k>", "a * <k>"),
        function=lambda filling, a, b: filling["op"].function(a * filling["k"], b),
        edges=_edges,
        draw=_draw,
    ),
    Template(
        family="arithmetic",
        name="shift",
        arguments="a, b",
        slots={"op": (PLUS, MINUS), "k": DIGITS},
        phrasings=(
            "Return (a <op.join> <k>) times b.",
            "Take a <op.join> <k>, then multiply by b.",
            "Let c be a <op.alt> <k>. Return c times b.",
        ),
        solution="(a <op> <k>) * b",
        wrong=("a <op> <k> * b", "a * b <op> <k>"),
        function=lambda filling, a, b: filling["op"].function(a, filling["k"]) * b,
        edges=_edges,
        draw=_draw,
    ),
    Template(
        family="arithmetic",
        name="divide",
        arguments="a, b",
        slots={"div": (FLOOR, MODULO), "op": (PLUS, MINUS), "k": DIGITS},
        phrasings=(
            "Return a <div.join> <k>, <op.join> b.",
            "Take a <div.alt> <k>, then <op.verb> b.",
            "Let c be a <div.join> <k>. Return c <op.join> b.",
        ),
        solution="a <div> <k> <op> b",
        wrong=(
            "a <div> <k>",
            "(a <op> b) <div> <k>",
        ),
        function=lambda filling, a, b: filling["op"].function(filling["div"].function(a, filling["k"]), b),
        edges=_edges,
        draw=_draw,
    ),
)
