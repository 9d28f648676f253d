"""Two policies on the same tasks: how far apart are they, and could that be chance?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ascent.report.pass_rates import Z, t_quantile

INTERVAL = "95 %, Student's t over the tasks' differences (single completions: Agresti and Min's)"
TEST = "exact permutation test, signs of the tasks' differences (single completions: McNemar's exact test)"
_FINEST = 10_000  # steps of a difference of 1 in which it is counted, where its own steps are finer
_FEWEST = 5  # tasks from which on a t interval means something


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean over tasks of one policy's rate minus another's, with its 95 % interval; `better` and `worse` count the
    tasks where it is above and below 0. `p` is the chance of a mean at least as far from 0 if signs were a coin's."""

    mean: float
    low: float
    high: float
    p: float
    tasks: int
    better: int
    worse: int

    def __str__(self) -> str:
        interval = f"{100 * self.low:+.1f} to {100 * self.high:+.1f}"
        return f"{100 * self.mean:+.1f} points ({interval}), p = {self.p:.2g}"


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """Compare rates in [0, 1] of the same tasks, in the same order, at least one.

    The interval is Student's over the differences. Where every difference is -1, 0 or 1, or all are equal, or there are
    few, it is that of Agresti and Min (2005, "Simple improved confidence intervals for comparing matched proportions"),
    which adds two tasks of half a pair of each kind and so is never empty. `p` is two-sided, from the distribution of
    all 2^tasks ways to give signs to the differences; it is exact, for differences of 0 and 1 it is McNemar's exact
    test. Raises ValueError for sequences of different or no length.
    """
    values = [a - b for a, b in zip(ours, theirs, strict=True)]
    if not values:
        raise ValueError("no task to compare")
    low, high = _interval(values)
    return Difference(
        sum(values) / len(values),
        low,
        high,
        sign_flip_p(values),
        len(values),
        sum(value > 0 for value in values),
        sum(value < 0 for value in values),
    )


def _interval(values: Sequence[float]) -> tuple[float, float]:
    n = len(values)
    mean = sum(values) / n
    squares = sum((value - mean) ** 2 for value in values)
    if n < _FEWEST or squares == 0 or all(value in (-1, 0, 1) for value in values):
        mean = sum(values) / (n + 2)
        variance = (sum(value * value for value in values) + 1) / (n + 2) - mean * mean
        half = Z * math.sqrt(variance / (n + 2))
    else:
        half = t_quantile(n - 1) * math.sqrt(squares / (n - 1) / n)
    return max(-1.0, mean - half), min(1.0, mean + half)


def sign_flip_p(values: Sequence[float]) -> float:
    """The share of all ways to give signs to the values whose sum is at least as far from 0 as theirs.

    The number of ways to reach each sum is the product of the polynomials 1 + x^(2 step), which is computed as one
    product of whole numbers, a field of bits for each coefficient.
    """
    steps = _whole_steps(values)
    sizes = [abs(step) for step in steps if step]
    if not sizes:
        return 1.0
    width = (len(sizes) + 8) // 8  # bytes for a count of up to 2^len(sizes)
    ways = 1
    for size in sizes:
        ways += ways << (8 * width * size)
    total, seen = sum(sizes), abs(sum(steps))  # field i: the ways in which the positive ones sum to i
    fields = ways.to_bytes(width * (total + 1), "little")
    count = sum(
        int.from_bytes(fields[width * place : width * (place + 1)], "little")
        for place in range(total + 1)
        if abs(2 * place - total) >= seen
    )
    return count / 2 ** len(sizes)


def _whole_steps(values: Sequence[float]) -> list[int]:
    """The values as multiples of their common step: shares of few completions have one."""
    for steps in range(1, 201):
        if all(abs(value * steps - round(value * steps)) < 1e-9 * steps for value in values):
            return [round(value * steps) for value in values]
    return [round(value * _FINEST) for value in values]
