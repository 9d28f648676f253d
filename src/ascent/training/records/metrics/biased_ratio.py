"""1 where sampling settings bias the importance ratios (see `rollout.narrowed_sampling`); not there otherwise."""

from __future__ import annotations

from ascent.training.records.batch import BatchRecord
from ascent.training.records.metrics.metric import Metric


def _measure(batch: BatchRecord) -> tuple[float, float] | None:
    return (1.0, 1.0) if batch.biased_by else None


BIASED_RATIO = Metric("rollout/biased_ratio", _measure, of_evaluations=False)
