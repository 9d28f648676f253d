"""The form of a metric of one generation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ascent.training.records.batch import BatchRecord


@dataclass(frozen=True, slots=True)
class Metric:
    """A number made of one generation's completions on all ranks, under `name` in metrics.jsonl.

    `measure` gives this rank's (sum, count) of the generation; None when the metric says nothing about this kind of
    training, which must be so on all ranks. The metric is sum / count over all ranks, or the sum for a `total`.
    """

    name: str
    measure: Callable[[BatchRecord], tuple[float, float] | None]
    total: bool = False
    of_evaluations: bool = True  # whether it is also measured in evaluations
