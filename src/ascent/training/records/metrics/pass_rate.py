"""The share of completions that pass all tests; what could not be judged is left out."""

from __future__ import annotations

from ascent.training.records.batch import BatchRecord
from ascent.training.records.metrics.metric import Metric


def _measure(batch: BatchRecord) -> tuple[float, float] | None:
    if not batch.scores:  # no reward function gives verdicts
        return None
    judged = [score.verdict for score in batch.scores if score.verdict and not score.verdict.infrastructure_error]
    return float(sum(verdict.all_passed for verdict in judged)), float(len(judged))


PASS_RATE = Metric("pass_rate", _measure)
