"""Words that several families share, and inputs to draw."""

from __future__ import annotations

import operator
import random

from ascent.tasks.builtin.template import Word

PLUS = Word("plus", "+", operator.add, "plus", "increased by", "add", "-")
MINUS = Word("minus", "-", operator.sub, "minus", "decreased by", "subtract", "+")
TIMES = Word("times", "*", operator.mul, "times", "multiplied by", "multiply by", "+")
FLOOR = Word("floor", "//", operator.floordiv, "floor divided by", "integer divided by", other="%")
MODULO = Word("modulo", "%", operator.mod, "modulo", "mod", other="//")

ABOVE = Word("above", ">", operator.gt, "greater than", "above", other=">=")
BELOW = Word("below", "<", operator.lt, "less than", "below", other="<=")
AT_LEAST = Word("at-least", ">=", operator.ge, "at least", "no less than", other=">")
AT_MOST = Word("at-most", "<=", operator.le, "at most", "no more than", other="<")

FIRST = Word("first", "[:<k>]", lambda xs, k: xs[:k], "the first <k>", other="[<k>:]")
AFTER_FIRST = Word("after-first", "[<k>:]", lambda xs, k: xs[k:], "all but the first <k>", other="[:<k>]")
LAST = Word("last", "[-<k>:]", lambda xs, k: xs[-k:], "the last <k>", other="[:<k>]")
BEFORE_LAST = Word("before-last", "[:-<k>]", lambda xs, k: xs[:-k], "all but the last <k>", other="[:<k>]")

DIGITS = tuple(range(2, 10))
FEW = tuple(range(2, 6))


def draw_number(rng: random.Random) -> int:
    """A whole number from -20 to 20."""
    return rng.randint(-20, 20)


def draw_near(rng: random.Random, number: int) -> int:
    """A whole number on either side of `number`, often close to it."""
    return number + rng.choice((-1, 1)) * rng.choice((0, 1, 2, 3, 7, 15))


def draw_numbers(rng: random.Random, shortest: int, longest: int) -> list[int]:
    """A list of whole numbers from -9 to 15."""
    return [rng.randint(-9, 15) for _ in range(rng.randint(shortest, longest))]
