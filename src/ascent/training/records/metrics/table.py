"""All metrics of a generation. A new one is a file beside this one, and a line here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from ascent.training.records.batch import BatchRecord
from ascent.training.records.metrics.drawn_groups import DRAWN_GROUPS
from ascent.training.records.metrics.dropped_completions import DROPPED_COMPLETIONS
from ascent.training.records.metrics.not_finite import NOT_FINITE
from ascent.training.records.metrics.pass_rate import PASS_RATE
from ascent.training.records.metrics.staleness import STALENESS
from ascent.training.step.importance_weights import weights_of

METRICS = (
    PASS_RATE,
    STALENESS,
    DROPPED_COMPLETIONS,
    *DRAWN_GROUPS,
    *NOT_FINITE,
)


def measure_all(
    batch: BatchRecord, output: Mapping[str, Any], accelerator: Any, *, evaluation: bool
) -> dict[str, float]:
    """Every metric of a generation over all ranks, NaN where there was nothing to count. `output` is what TRL made of
    it. Collective."""
    wanted = [metric for metric in METRICS if metric.of_evaluations or not evaluation]
    here = {metric: measured for metric in wanted if (measured := metric.measure(batch)) is not None}
    sums_M2 = accelerator.reduce(torch.tensor(list(here.values()), device=accelerator.device), reduction="sum")
    found = weights_of(output, accelerator)
    for metric, (value, count) in zip(here, sums_M2.tolist(), strict=True):
        found[metric.name] = value if metric.total else (value / count if count else math.nan)
    return found
