"""The plan's settings out of a run's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ascent.config import RunConfig
from ascent.memory.cards import GIB
from ascent.memory.model import Model
from ascent.memory.settings import Batch, Engine, Layout, Penalty, Settings, Trained

PROMPT_TOKENS = 512  # where a configuration says nothing about the longest prompt
_CPU_KV_CACHE_MB = 512  # the run's own default there


def settings_of(config: RunConfig, processes: int, kind: str) -> tuple[Settings, list[str]]:
    """What a run with so many training processes on devices of that kind (npu, cuda, cpu) is planned by, and sentences
    about what had to be assumed."""
    notes: list[str] = []
    given = config.trainer
    batch = _batch(config, notes)
    trained = _trained(config, kind)
    return Settings(trained, batch, _engine(config, kind, trained.dtype), _layout(config, given, processes)), notes


def within_context(settings: Settings, model: Model) -> Settings:
    """The settings with prompts that leave room for a completion in the model's context, as those of a run do."""
    batch = settings.batch
    if not model.context or batch.length <= model.context or batch.completion >= model.context:
        return settings
    return replace(settings, batch=replace(batch, prompt=model.context - batch.completion))


def _trained(config: RunConfig, kind: str) -> Trained:
    given = config.trainer
    init = given.get("model_init_kwargs") or {}
    dtype = str(init.get("dtype") or ("float32" if config.model.dtype == "auto" else config.model.dtype))
    half = bool(given.get("bf16", kind != "cpu" and not given.get("fp16"))) or bool(given.get("fp16"))
    usual = "adamw_torch" if kind == "cpu" else "adamw_torch_fused"
    lora = config.model.lora
    implementation = config.model.attn_implementation or init.get("attn_implementation")
    cap = config.memory.trainer_gb
    return Trained(
        dtype=dtype if dtype in ("float32", "bfloat16", "float16") else "float32",
        autocast=half,
        lora=None if lora is None else lora.r,
        optimizer=str(given.get("optim", usual)),
        reference=float(given.get("beta") or 0.0) > 0.0,
        checkpointing=bool(given.get("gradient_checkpointing", True)),
        fused_attention=implementation != "eager",
        logits="tiled",
        router_loss=given.get("router_aux_loss_coef") != 0,
        scores=_scores(config),
        penalty=_penalty(config),
        offload=config.memory.offload,
        cap=None if cap is None else int(cap * GIB),
    )


def _penalty(config: RunConfig) -> Penalty | None:
    """None for an algorithm without a second gradient, and for a penalty of strength 0, which is GRPO."""
    given: Any = config.algorithm
    if given.name != "gpro" or given.penalty.strength == 0:
        return None
    return Penalty(given.penalty.parameters, given.penalty.fraction, given.penalty.radius == "auto")


def _scores(config: RunConfig) -> bool:
    """Whether a run takes old log-probabilities in a pass of their own: not where each optimizer step trains on whole
    generations, once (`training/batches/settings.py`)."""
    given = config.trainer
    accumulation = int(given.get("gradient_accumulation_steps") or 1)
    every = int(given.get("steps_per_generation") or accumulation) * int(given.get("num_iterations") or 1)
    if accumulation % every:
        return True
    corrects = config.rollout.engine == "vllm" and given.get("vllm_importance_sampling_correction", True)
    return bool(corrects) and not given.get("skip_old_logps", True)


def _batch(config: RunConfig, notes: list[str]) -> Batch:
    given = config.trainer
    completion = int(given.get("max_completion_length") or 256)
    longest = config.rollout.max_model_len
    prompt = config.tasks.max_prompt_tokens or (longest - completion if longest and longest > completion else None)
    if prompt is None:
        prompt = PROMPT_TOKENS
        notes.append(
            f"the longest prompt is taken to have {PROMPT_TOKENS} tokens: tasks.max_prompt_tokens or "
            "rollout.max_model_len would say"
        )
    micro = int(given.get("per_device_train_batch_size") or 8)
    accumulation = int(given.get("gradient_accumulation_steps") or 1)
    budget = given.get("max_tokens_per_batch", "auto")
    every = int(given.get("steps_per_generation") or accumulation)
    return Batch(
        prompt=prompt,
        completion=completion,
        micro_batch=micro,
        accumulation=accumulation,
        group=int(given.get("num_generations") or 8),
        budget=0 if budget == "auto" else budget,
        shared_prompt=given.get("shared_prompt", "auto") != "off",
        generation=micro * every,
    )


def _engine(config: RunConfig, kind: str, dtype: str) -> Engine:
    rollout, memory = config.rollout, config.memory
    cache = memory.kv_cache_mb or (_CPU_KV_CACHE_MB if kind == "cpu" else None)
    wanted: Any = rollout.dtype
    if wanted == "auto":
        wanted = dtype if kind == "cpu" or dtype != "float32" else "bfloat16"
    own_servers = rollout.mode == "server" and rollout.server is None
    place: Any = "colocate" if rollout.mode == "colocate" else "server" if own_servers else "elsewhere"
    return Engine(
        kind="transformers" if rollout.engine == "transformers" else "vllm",
        place=place,
        share=memory.engine_share,
        kv_cache=None if cache is None else cache * 2**20,
        dtype=wanted,
        sequences=rollout.max_num_seqs,
        batched_tokens=rollout.max_num_batched_tokens,
        tensor_parallel=rollout.tensor_parallel_size,
        replicas=rollout.replicas,
        eager=kind != "cuda" if rollout.enforce_eager is None else rollout.enforce_eager,
        sleeps=memory.engine_sleep,
    )


def _layout(config: RunConfig, given: Mapping[str, Any], processes: int) -> Layout:
    shards = processes if processes > 1 and (given.get("fsdp") or _third_stage(given.get("deepspeed"))) else 1
    return Layout(trainers=processes, shards=shards, servers=len(config.server_devices(processes)))


def _third_stage(deepspeed: Any) -> bool:
    """Whether DeepSpeed cuts weights too (ZeRO stage 3); a file of its settings isn't read here."""
    return isinstance(deepspeed, Mapping) and (deepspeed.get("zero_optimization") or {}).get("stage") == 3
