"""How the engine is built: from a run's configuration, or from a `GRPOConfig` alone."""

from __future__ import annotations

from typing import Any

from trl.trainer.grpo_config import GRPOConfig as TRLConfig

from ascent.config import RunConfig
from ascent.rollout.engine import EngineSettings
from ascent.rollout.platform import engine_kind
from ascent.training.arguments import own_setting
from ascent.training.batches.drawing.settings import OVERSAMPLE, drawing_asked_for
from ascent.training.numerics.head import head_dtype
from ascent.training.numerics.precision import engine_dtype

_CPU_KV_CACHE_MB = 512


def from_arguments(args: TRLConfig, model: Any, num_processes: int) -> EngineSettings:
    """The engine that TRL's `vllm_*` fields ask for; the model is loaded from where the trainer's came from."""
    kind = engine_kind()
    weights = str(model.dtype).removeprefix("torch.")
    return EngineSettings(
        model=model.name_or_path,
        dtype=engine_dtype(weights, fp16=args.fp16, device_kind=kind),
        head_dtype=head_dtype(args),
        max_model_len=args.vllm_max_model_length or model.config.get_text_config().max_position_embeddings,
        max_num_seqs=sampled_at_once(args),
        enforce_eager=kind != "cuda",
        engine_share=args.vllm_gpu_memory_utilization,
        kv_cache_bytes=_CPU_KV_CACHE_MB * 2**20 if kind == "cpu" else None,
        trust_remote_code=args.trust_remote_code,
        external_launcher=num_processes > 1,
        sleeps=args.vllm_enable_sleep_mode,
    )


def sampled_at_once(args: TRLConfig) -> int:
    """How many completions a process has sampled at once: those of its part of a generation, and with over-sampling so
    many times as many. Raises InputError for a factor that can't be."""
    batch = args.per_device_train_batch_size * (args.steps_per_generation or 1)
    return int(batch * own_setting(args, OVERSAMPLE)) if OVERSAMPLE in drawing_asked_for(args) else batch


def from_config(
    config: RunConfig,
    model_path: str,
    *,
    model_dtype: str,
    args: TRLConfig,
    batch: int,
    longest_prompt: int,
    completion: int,
    context: int,
    num_processes: int,
) -> EngineSettings:
    """The engine of a run. `batch` is the number of completions that this process has sampled at once, `longest_prompt`
    and `completion` are in tokens, `context` is the model's own limit."""
    rollout, memory = config.rollout, config.memory
    kind = engine_kind()
    kv_cache_mb = memory.kv_cache_mb or (_CPU_KV_CACHE_MB if kind == "cpu" else None)
    dtype = rollout.dtype
    if dtype == "auto":
        dtype = engine_dtype(model_dtype, fp16=args.fp16, device_kind=kind)  # type: ignore[assignment]
    return EngineSettings(
        model=model_path,
        dtype=dtype,
        head_dtype=head_dtype(args),
        max_model_len=rollout.max_model_len or min(context, longest_prompt + completion),
        max_num_seqs=rollout.max_num_seqs or batch,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        prefix_caching=rollout.prefix_caching,
        enforce_eager=kind != "cuda" if rollout.enforce_eager is None else rollout.enforce_eager,
        engine_share=memory.engine_share,
        kv_cache_bytes=None if kv_cache_mb is None else kv_cache_mb * 2**20,
        trust_remote_code=config.model.trust_remote_code,
        external_launcher=num_processes > 1,
        speculative=rollout.speculative,
        speculative_tokens=rollout.speculative_tokens,
        sleeps=memory.engine_sleep,
        block_size=rollout.block_size,
        chunked_prefill=rollout.chunked_prefill,
        threads=rollout.threads,
    )
