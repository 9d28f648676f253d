"""What is computed of the cells: each arm's figures, and paired differences with their intervals."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Student's t, 97.5 %, by degrees of freedom
T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
Cell = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with half the width of its 95 % interval (None below two values), of `count` values."""

    mean: float
    half: float | None
    count: int

    def __str__(self) -> str:
        return f"{self.mean:+.3f}" + ("" if self.half is None else f" ± {self.half:.3f}") + f" (n={self.count})"


def interval(values: Sequence[float]) -> Interval:
    """Student's t over the values."""
    if len(values) < 2:
        return Interval(statistics.mean(values), None, len(values))
    half = T_975[len(values) - 1] * statistics.stdev(values) / len(values) ** 0.5
    return Interval(statistics.mean(values), half, len(values))


def end(cell: Cell, figure: str = "truth") -> float:
    """A held-out figure after the last step."""
    return float(cell["held_out"][-1][figure])


def peak(cell: Cell) -> float:
    """The best held-out truth at any evaluation: what an oracle that stops early has."""
    return max(float(each["truth"]) for each in cell["held_out"])


def gap(cell: Cell) -> float:
    """Held-out proxy less held-out truth at the end."""
    return end(cell, "proxy") - end(cell)


def truth_at(cell: Cell, proxy: float) -> float | None:
    """Held-out truth at the first evaluation with at least this proxy; None where it is never reached."""
    return next((float(each["truth"]) for each in cell["held_out"] if each["proxy"] >= proxy), None)


def last_metric(cell: Cell, name: str, steps: int = 20) -> float | None:
    """The mean of a metric of the update over the last steps."""
    values = [value for value in cell["metrics"].get(name, [])[-steps:] if value is not None]
    return statistics.mean(values) if values else None


def paired(one: Mapping[int, Cell], other: Mapping[int, Cell], figure: Any = end) -> Interval | None:
    """The difference of a figure between two arms, over the seeds that both have."""
    seeds = sorted(set(one) & set(other))
    differences = [(figure(one[seed]), figure(other[seed])) for seed in seeds]
    known = [first - second for first, second in differences if first is not None and second is not None]
    return interval(known) if known else None
