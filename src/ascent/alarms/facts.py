"""What the rules and the advice must know of a run besides its figures: some of its settings, and its model's shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent.config import RunConfig

EXPECTED_COMMUNICATION = "communication.json"
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class RunFacts:
    """None is unknown. `reward_range` is the most that a completion can earn less the least, `compile_reward` how much
    of that a program earns by being valid, `only_code` whether tests alone are paid for. `precision` is the coarser one
    of sampler and trainer. `kv_bytes_per_token` is what the keys and values of a token take in all layers, `sequences`
    how many are sampled at once. `communication_share` is how much of a step should be communication."""

    beta: float | None = None
    learning_rate: float | None = None
    temperature: float | None = None
    epsilon_high: float | None = None
    num_generations: int | None = None
    max_completion_length: int | None = None
    reward_range: float | None = None
    compile_reward: float = 0.0
    only_code: bool = False
    reward_tests: str | None = None
    staleness: int = 0
    precision: str | None = None
    sequences: int | None = None
    kv_bytes_per_token: int | None = None
    communication_share: float | None = None


def facts_of(
    config: RunConfig,
    model_config: Mapping[str, Any] | None = None,
    accelerator: str | None = None,
    communication_share: float | None = None,
) -> RunFacts:
    """Of a run with this configuration; `model_config` is the content of its model's config.json, `accelerator` the
    kind of device that it trains on, `communication_share` what is expected of it, where they are known.

    Fields of `trainer` that aren't given have TRL's defaults.
    """
    trainer, reward = config.trainer, config.reward
    only_code = [each.function for each in reward.functions] == ["code"]
    weight = sum(each.weight for each in reward.functions if each.function == "code")
    earned = reward.compile_weight + reward.tests_weight + reward.all_tests_weight
    batch = trainer.get("per_device_train_batch_size", 8) * trainer.get("gradient_accumulation_steps", 1)
    return RunFacts(
        beta=_number(trainer.get("beta", 0.0)),
        learning_rate=_number(trainer.get("learning_rate", 1e-6)),
        temperature=_number(trainer.get("temperature", 1.0)),
        epsilon_high=_number(trainer.get("epsilon_high") or trainer.get("epsilon", 0.2)),
        num_generations=trainer.get("num_generations", 8),
        max_completion_length=trainer.get("max_completion_length", 256),
        reward_range=earned * abs(weight) if only_code else None,
        compile_reward=abs(weight) * reward.compile_weight,
        only_code=only_code,
        reward_tests=reward.tests,
        staleness=config.rollout.staleness,
        precision=_precision(config, accelerator),
        sequences=config.rollout.max_num_seqs or batch,
        kv_bytes_per_token=None if model_config is None else kv_bytes_per_token(model_config, config.rollout.dtype),
        communication_share=communication_share,
    )


def model_config_of(folder: Path) -> Mapping[str, Any] | None:
    """The config.json of a model's folder; None where there is none or it can't be read: nothing but the bytes of a KV
    cache depends on it."""
    try:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def accelerator_of(run: Path) -> str | None:
    """The kind of device that a run trains on, such as `cpu`: what its attempts.jsonl says of a cluster's machines,
    else what its environment.json says of the machine that started it; None where neither says."""
    try:
        newest = json.loads((run / "attempts.jsonl").read_text(encoding="utf-8").splitlines()[-1])
        if newest["accelerator"] is not None:
            return str(newest["accelerator"])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        pass  # attempts weren't counted
    try:
        content = json.loads((run / "environment.json").read_text(encoding="utf-8"))
        return str(content["environment"]["accelerator"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def expected_communication(run: Path) -> float | None:
    """How much of a step of this run should be communication, as whoever placed it on its machines has written into its
    communication.json; None where nobody has."""
    try:
        content = json.loads((run / EXPECTED_COMMUNICATION).read_text(encoding="utf-8"))
        share = _number(content["expected_share"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return share if share is not None and 0 <= share <= 1 else None


def kv_bytes_per_token(model_config: Mapping[str, Any], dtype: str) -> int | None:
    """Bytes of a token's keys and values in all layers: 2 x layers x key-value heads x head size x bytes of a number.
    None for a config.json that doesn't say so, such as one of a model with latent attention."""
    text = model_config.get("text_config", model_config)
    heads = text.get("num_attention_heads")
    kept, layers = text.get("num_key_value_heads", heads), text.get("num_hidden_layers")
    size = text.get("head_dim") or (text["hidden_size"] // heads if heads and "hidden_size" in text else None)
    if "kv_lora_rank" in text or not all(isinstance(each, int) for each in (kept, layers, size)):
        return None
    return int(2 * layers * kept * size * _BYTES.get(dtype, 2))


def _precision(config: RunConfig, accelerator: str | None) -> str | None:
    """The coarser one of sampler and trainer: where nothing is said, float32 on CPU and bfloat16 elsewhere."""
    trainer, sampler = config.trainer, config.rollout.dtype
    trained = "bfloat16" if trainer.get("bf16") else "float16" if trainer.get("fp16") else config.model.dtype
    coarser = next((each for each in (sampler, trained) if each in ("bfloat16", "float16")), None)
    if coarser is not None or accelerator is None:
        return coarser
    return "float32" if accelerator == "cpu" else "bfloat16"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
