"""The one place that turns EngineSettings into vLLM's arguments, for an engine in process and for a server alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ascent.rollout.engine import EngineSettings
from ascent.rollout.speculation import speculative_config
from ascent.types import Sampling


def engine_arguments(settings: EngineSettings) -> dict[str, Any]:
    """Keyword arguments of vLLM's `EngineArgs`; None and {} stand for vLLM's own default."""
    return {
        "model": settings.model,
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": max(settings.max_num_batched_tokens, settings.max_model_len),
        "enable_prefix_caching": settings.prefix_caching,
        "enable_chunked_prefill": settings.chunked_prefill,
        "block_size": settings.block_size,
        "enforce_eager": settings.enforce_eager,
        "gpu_memory_utilization": settings.engine_share,
        "kv_cache_memory_bytes": settings.kv_cache_bytes,
        "enable_sleep_mode": settings.sleeps,
        "trust_remote_code": settings.trust_remote_code,
        "speculative_config": speculative_config(settings.speculative, settings.speculative_tokens),
        "hf_overrides": {} if settings.head_dtype is None else {"head_dtype": settings.head_dtype},
        "logprobs_mode": "processed_logprobs",  # after temperature, as the trainer computes them
        "generation_config": "vllm",  # sampling is given with each request, never taken from the checkpoint
    }


def command_line(arguments: Mapping[str, Any]) -> list[str]:
    """The same arguments as options of vLLM's server."""
    options: list[str] = []
    for name, value in arguments.items():
        option = name.replace("_", "-")
        if value is None or value == {}:
            continue
        if isinstance(value, dict):
            options += [f"--{option}", json.dumps(value)]
        elif isinstance(value, bool):
            options.append(f"--{option}" if value else f"--no-{option}")
        else:
            options += [f"--{option}", str(value)]
    return options


def sampling_arguments(sampling: Sampling, seed: int | None) -> dict[str, Any]:
    """Keyword arguments of vLLM's `SamplingParams` for one completion with its sampled tokens' log-probabilities."""
    extra = dict(sampling.extra)
    return {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "stop_token_ids": list(sampling.stop_token_ids),
        "seed": seed,
        "logprobs": 0,  # the sampled token's own
        "detokenize": bool(extra.get("stop")),  # strings that end a completion are looked for in its text
        **extra,
    }
