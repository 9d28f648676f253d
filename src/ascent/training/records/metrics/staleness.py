"""How many optimizer steps older than the newest weights those were that sampled a completion, on average."""

from __future__ import annotations

from ascent.training.records.batch import BatchRecord
from ascent.training.records.metrics.metric import Metric


def _measure(batch: BatchRecord) -> tuple[float, float]:
    newest = batch.step - 1
    return float(sum(newest - each.weight_version for each in batch.completions)), float(len(batch.completions))


STALENESS = Metric("rollout/staleness", _measure, of_evaluations=False)
