"""One dictionary from letters to numbers: a look-up with a default, a change of each value, keys by their
value."""

from __future__ import annotations

import random

from ascent.tasks.builtin.template import Arguments, Filling, Template
from ascent.tasks.builtin.words import ABOVE, BELOW, DIGITS, MINUS, PLUS, TIMES

_LETTERS = "abcdxy"


def _draw(rng: random.Random, filling: Filling) -> Arguments:
    keys = rng.sample(_LETTERS, rng.randint(2, 5))
    return ({key: filling["k"] + rng.choice((-9, -3, -1, 0, 1, 2, 6)) for key in keys},)


def _edges_of_get(filling: Filling) -> list[Arguments]:
    k, key = filling["k"], filling["key"]
    return [({"q": 1},), ({},), ({key: 0},), ({key: k + 1},), ({"q": k, key: -1},)]


def _draw_get(rng: random.Random, filling: Filling) -> Arguments:
    (numbers,) = _draw(rng, filling)
    return ({**numbers, filling["key"]: rng.randint(10, 30)} if rng.random() < 0.6 else numbers,)


def _edges_of_values(filling: Filling) -> list[Arguments]:
    k = filling["k"]
    return [({"a": k, "b": k + 1, "c": k - 1},), ({},), ({"x": 0},), ({"y": k, "a": k + 1},)]


TEMPLATES = (
    Template(
        family="dictionaries",
        name="get",
        arguments="d",
        slots={"key": ("a", "b", "c", "x", "y"), "k": DIGITS},
        phrasings=(
            'Return the value of "<key>" in d, or <k> if missing.',
            'Look up "<key>" in d, with <k> as default.',
            'Give d at "<key>", or <k> when "<key>" is not in d.',
        ),
        solution='d.get("<key>", <k>)',
        wrong=('d["<key>"]', 'd.get("<key>")', 'd.get("z", <k>)'),
        function=lambda filling, d: d[filling["key"]] if filling["key"] in d else filling["k"],
        edges=_edges_of_get,
        draw=_draw_get,
    ),
    Template(
        family="dictionaries",
        name="values",
        arguments="d",
        slots={"op": (PLUS, MINUS, TIMES), "k": DIGITS},
        phrasings=(
            "Return d with every value <op.alt> <k>.",
            "For each key of d give its value <op.join> <k>.",
            "Return a dict of key to value <op.join> <k> for d.",
        ),
        solution="{k: v <op> <k> for k, v in d.items()}",
        wrong=(
            "[v <op> <k> for v in d.values()]",
            "d",
        ),
        function=lambda filling, d: {key: filling["op"].function(v, filling["k"]) for key, v in d.items()},
        edges=_edges_of_values,
        draw=_draw,
    ),
    Template(
        family="dictionaries",
        name="keys",
        arguments="d",
        slots={"cmp": (ABOVE, BELOW), "k": DIGITS},
        phrasings=(
            "Return a list of keys of d with value <cmp.join> <k>.",
            "Which keys of d have a value <cmp.alt> <k>?",
            "List each key of d if its value is <cmp.join> <k>.",
        ),
        solution="[k for k, v in d.items() if v <cmp> <k>]",
        wrong=(
            "[v for k, v in d.items() if v <cmp> <k>]",
            "list(d)",
        ),
        function=lambda filling, d: [key for key, v in d.items() if filling["cmp"].function(v, filling["k"])],
        edges=_edges_of_values,
        draw=_draw,
    ),
)
