"""One string: a part of it in another case, or a mark put before or after it."""

from __future__ import annotations

import random

from ascent.tasks.builtin.template import Arguments, Filling, Template, Word
from ascent.tasks.builtin.words import AFTER_FIRST, BEFORE_LAST, FEW, FIRST, LAST

_UPPER = Word("upper", ".upper()", str.upper, "upper case", other=".lower()")
_LOWER = Word("lower", ".lower()", str.lower, "lower case", other=".upper()")
_SWAP = Word("swap", ".swapcase()", str.swapcase, "swapped case", other=".upper()")

_APPENDED, _PREPENDED = 's + "<mark>" * <k>', '"<mark>" * <k> + s'
_AFTER = Word("after", _APPENDED, lambda s, more: s + more, "after", other=_PREPENDED)
_BEFORE = Word("before", _PREPENDED, lambda s, more: more + s, "before", other=_APPENDED)

_LETTERS = "abcdefgHIJKLMNopqRST"


def _edges_of_case(filling: Filling) -> list[Arguments]:
    k = filling["k"]
    return [("aBcDeFgHiJ",), ("",), ("xY",), ("Ab" * k,), ("q R s T u",)]


def _edges_of_mark(filling: Filling) -> list[Arguments]:
    mark = filling["mark"]
    return [("ab",), ("",), (mark,), (f"a{mark}b",), (f"{mark}{mark}",)]


def _draw(rng: random.Random, filling: Filling) -> Arguments:
    length = rng.randint(filling["k"] + 1, filling["k"] + 6)
    return ("".join(rng.choice(_LETTERS) for _ in range(length)),)


TEMPLATES = (
    Template(
        family="strings",
        name="case",
        arguments="s",
        slots={"case": (_UPPER, _LOWER, _SWAP), "part": (FIRST, AFTER_FIRST, LAST, BEFORE_LAST), "k": FEW},
        phrasings=(
            "Return <part.join> characters of s in <case.join>.",
            "Take <part.join> characters of s and make them <case.join>.",
            "In <case.join>, give <part.join> characters of s.",
        ),
        solution="s<part><case>",
        wrong=(
            "s<case>",
            "s<part>",
        ),
        function=lambda filling, s: filling["case"].function(filling["part"].function(s, filling["k"])),
        edges=_edges_of_case,
        draw=_draw,
    ),
    Template(
        family="strings",
        name="mark",
        arguments="s",
        slots={"side": (_AFTER, _BEFORE), "mark": ("!", "?", "-"), "k": (*FEW, 6, 7, 8, 9)},
        phrasings=(
            'Return s with <k> times "<mark>" <side.join> it.',
            'Put "<mark>" <k> times <side.join> s.',
            'Add <k> of "<mark>" <side.join> s.',
        ),
        solution="<side>",
        wrong=(
            '"<mark>" * <k> + s + "<mark>" * <k>',
            '"<mark>" * <k>',
            's + "<mark>"',
            '(s + "<mark>") * <k>',
            "s * <k>",
        ),
        function=lambda filling, s: filling["side"].function(s, filling["mark"] * filling["k"]),
        edges=_edges_of_mark,
        draw=_draw,
    ),
)
