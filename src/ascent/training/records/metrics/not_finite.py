"""Shares of what is not finite where it arises (see `numerics.sources`)."""

from __future__ import annotations

from ascent.training.numerics.sources import LOGPS, REWARDS, TOKEN_0, logps_not_finite, only_token_0
from ascent.training.records.batch import BatchRecord
from ascent.training.records.metrics.metric import Metric


def _logps(batch: BatchRecord) -> tuple[float, float]:
    return float(logps_not_finite(batch.completions)), float(len(batch.completions))


def _token_0(batch: BatchRecord) -> tuple[float, float]:
    return float(only_token_0(batch.completions)), float(len(batch.completions))


NOT_FINITE = (
    Metric(REWARDS, lambda batch: batch.spoiled_rewards),
    Metric(LOGPS, _logps),
    Metric(TOKEN_0, _token_0),
)
