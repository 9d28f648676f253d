"""The few of vLLM's Prometheus metrics that Ascent uses, summed over the engines of a server."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class EngineMetrics:
    """Gauges as they are now, counters since the server's start. Field names follow vLLM's, without `vllm:`."""

    num_requests_running: float = 0.0
    num_requests_waiting: float = 0.0
    kv_cache_usage_perc: float = 0.0  # 0..1; the largest of several engines
    num_preemptions_total: float = 0.0
    prefix_cache_queries_total: float = 0.0
    prefix_cache_hits_total: float = 0.0
    prompt_tokens_total: float = 0.0
    generation_tokens_total: float = 0.0
    time_to_first_token_seconds_sum: float = 0.0
    time_to_first_token_seconds_count: float = 0.0


_NAMES = {field.name for field in fields(EngineMetrics)}


def read_metrics(text: str) -> EngineMetrics:
    """Read the Prometheus text format: lines `vllm:NAME{labels} VALUE`."""
    metrics = EngineMetrics()
    for line in text.splitlines():
        if not line.startswith("vllm:"):
            continue
        name = line[len("vllm:") : line.find("{")] if "{" in line else line[len("vllm:") :].split(" ", 1)[0]
        if name in _NAMES:
            value, before = float(line.rsplit(" ", 1)[1]), getattr(metrics, name)
            setattr(metrics, name, max(before, value) if name == "kv_cache_usage_perc" else before + value)
    return metrics
