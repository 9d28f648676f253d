"""Ratios of what was measured in turns, with their intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ascent.report.pass_rates import t_quantile


@dataclass(frozen=True, slots=True)
class Ratio:
    """The geometric mean of a ratio over rounds, and its 95 % interval (Student's t of the logarithms)."""

    mean: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})" if self.rounds > 1 else f"{self.mean:.2f} (once)"


def ratio(values: Sequence[float]) -> Ratio:
    """Of one value a round, each above 0."""
    logs = [math.log(value) for value in values]
    mean, half = statistics.mean(logs), 0.0
    if len(logs) > 1:
        half = t_quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))
