"""How many completions were sampled ahead and then not asked for."""

from __future__ import annotations

from ascent.training.records.metrics.metric import Metric

DROPPED_COMPLETIONS = Metric(
    "rollout/dropped_completions", lambda batch: (float(batch.dropped), 1.0), total=True, of_evaluations=False
)
