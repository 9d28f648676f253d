"""Gathers what an engine did between two reports into EngineStats."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ascent.types import Completion, EngineStats


@dataclass(slots=True)
class EngineCounter:
    """Counts since the last `take`; gauges keep the largest value seen."""

    kv_cache_use: float = 0.0
    running: int = 0
    waiting: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    tokens: int = 0
    busy_seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)

    def finished(self, completion: Completion) -> None:
        """Count one completion; of one that was broken off, its tokens."""
        self.tokens += len(completion.token_ids)
        if completion.finish_reason != "abort":
            self.latencies.append(completion.finished_at - completion.submitted_at)

    def take(self) -> EngineStats:
        """The figures so far; starts anew."""
        latencies = sorted(self.latencies)
        stats = EngineStats(
            kv_cache_use=self.kv_cache_use,
            running=self.running,
            waiting=self.waiting,
            preemptions=self.preemptions,
            prefix_hit_rate=self.prefix_hits / self.prefix_queries if self.prefix_queries else 0.0,
            tokens_per_second=self.tokens / self.busy_seconds if self.busy_seconds else 0.0,
            latency_p50=_quantile(latencies, 0.50),
            latency_p95=_quantile(latencies, 0.95),
        )
        for name, start in dataclasses.asdict(EngineCounter()).items():
            setattr(self, name, start)
        return stats

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Count the time inside as sampling."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.busy_seconds += time.monotonic() - started


def _quantile(ordered: list[float], fraction: float) -> float:
    """The value at or above `fraction` of the ordered values (nearest rank); 0.0 for none."""
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))] if ordered else 0.0
