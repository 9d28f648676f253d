"""With dynamic sampling, or over-sampling: how many groups were drawn and what became of them."""

from __future__ import annotations

from collections.abc import Callable

from ascent.training.batches.drawing.filled import Counts
from ascent.training.records.batch import BatchRecord
from ascent.training.records.metrics.metric import Metric


def _metric(name: str, measure: Callable[[Counts], tuple[float, float]], *, total: bool = False) -> Metric:
    def of_batch(batch: BatchRecord) -> tuple[float, float] | None:
        return None if batch.filled is None else measure(batch.filled.counts)

    return Metric(name, of_batch, total=total, of_evaluations=False)


def _reward(counts: Counts) -> tuple[float, float]:
    totals = [total for each in counts.observations for total in each.totals]
    return sum(totals), float(len(totals))


def _left(name: str, measure: Callable[[Counts], float]) -> Metric:
    def of_batch(batch: BatchRecord) -> tuple[float, float] | None:
        counts = None if batch.filled is None else batch.filled.counts
        return None if counts is None or counts.stragglers is None else (measure(counts), 1.0)

    return Metric(name, of_batch, total=True, of_evaluations=False)


DRAWN_GROUPS = (
    _metric("sampling/groups_drawn", lambda counts: (counts.drawn, 1.0), total=True),
    _metric("sampling/groups_dropped", lambda counts: (counts.dropped, 1.0), total=True),
    _metric("sampling/groups_without_signal", lambda counts: (counts.without_signal, 1.0), total=True),
    _metric("sampling/surplus", lambda counts: (counts.surplus, 1.0), total=True),
    _metric("sampling/resample_factor", lambda counts: (counts.drawn, counts.needed)),
    _metric("sampling/passes", lambda counts: (counts.passes, 1.0)),
    _metric("sampling/reward_drawn", _reward),
    _metric("tasks/always_solved", lambda counts: (counts.always_solved, 1.0)),
    _metric("tasks/never_solved", lambda counts: (counts.never_solved, 1.0)),
    _left("sampling/stragglers", lambda counts: counts.stragglers or 0),
    _left("sampling/carried_tokens", lambda counts: counts.carried_tokens),
)
