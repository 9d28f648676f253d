"""What the engines of all ranks did together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ascent.rollout.engine import RolloutEngine
from ascent.training.step.ranks import Ranks
from ascent.types import EngineStats


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_LARGEST, _SUM = max, sum
# of ranks that have an engine each, and of ranks that look at the same servers
_RULES: dict[str, tuple[Callable[[Sequence[float]], float], Callable[[Sequence[float]], float]]] = {
    "kv_cache_use": (_LARGEST, _LARGEST),
    "running": (_SUM, _LARGEST),
    "waiting": (_SUM, _LARGEST),
    "preemptions": (_SUM, _LARGEST),
    "prefix_hit_rate": (_mean, _mean),
    "tokens_per_second": (_SUM, _SUM),
    "latency_p50": (_mean, _mean),
    "latency_p95": (_LARGEST, _LARGEST),
    "time_to_first_token": (_mean, _mean),
}


def of_all_ranks(engine: RolloutEngine | None, ranks: Ranks, *, same_servers: bool) -> EngineStats | None:
    """What the engines of all ranks did since the last call, in one; None without engines. With the `same_servers`,
    what is read from the servers is not counted for each rank that reads it. Collective."""
    if engine is None:
        return None
    told = ranks.exchange(asdict(engine.stats()))
    figures: dict[str, Any] = {
        name: rules[same_servers]([each[name] for each in told]) for name, rules in _RULES.items()
    }
    return EngineStats(**figures)
