"""What the equality of gradients is tested with: losses, options of the loss, shapes of the window, savings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.training.batches.ragged_batches import Ragged
from tests.training.batches.windows import ALL_SAVINGS

from ascent.config.trl_fields import NOTHING_SAVED

LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo")
LEVELS = ("token", "sequence")
# Their means are over a micro-batch, so that only TRL with the same micro-batches is their measure.
MICRO_BATCH_LOSSES = ("bnpo",)


@dataclass(frozen=True)
class Case:
    """One training. Rows of a generation are trained on in `slices` micro-batches, `accumulation` of which make an
    optimizer step. `whole`: the measure is TRL with each window (or each generation in it) as one micro-batch;
    otherwise TRL with these micro-batches. `silent`: generations without any signal, by number. `sampled`: the trainers
    sample by themselves, from a script, and take all log-probabilities; "nan": some of the sampler's aren't known."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    ragged: Ragged = field(default_factory=Ragged)
    policy: str = "llama"
    generations: int = 1
    slices: int = 3
    accumulation: int = 3
    whole: bool = True
    lora: bool = False
    silent: tuple[int, ...] = ()
    sampled: Literal["", "all", "nan"] = ""

    def __post_init__(self) -> None:
        assert self.ragged.rows % self.slices == 0

    @property
    def batches(self) -> dict[str, int]:
        """TRL's settings of micro-batches and windows."""
        return {
            "per_device_train_batch_size": self.ragged.rows // self.slices,
            "steps_per_generation": self.slices,
            "gradient_accumulation_steps": self.accumulation,
        }

    @property
    def whole_batches(self) -> dict[str, int]:
        """The same windows, in as few micro-batches as can be: one, or one of each generation."""
        windows = max(1, self.slices // self.accumulation)
        return {
            "per_device_train_batch_size": self.ragged.rows // windows,
            "steps_per_generation": windows,
            "gradient_accumulation_steps": max(1, self.accumulation // self.slices),
        }


def with_loss(case: Case, loss: str, level: str = "token") -> Case:
    """The case with this loss."""
    whole = case.whole and loss not in MICRO_BATCH_LOSSES
    return replace(case, settings={**case.settings, "loss_type": loss, "importance_sampling_level": level}, whole=whole)


_VLLM = {"use_vllm": True}
CASES: dict[str, Case] = {
    "plain": Case(),
    "on-policy": Case(ragged=Ragged(old=False)),
    "kl": Case({"beta": 0.1}, Ragged(reference=True)),
    "kl-corrected": Case({"beta": 0.1, "use_bias_correction_kl": True}, Ragged(reference=True)),
    "delta": Case({"delta": 1.3, "epsilon_high": 0.28}),
    "off-policy-mask": Case({"off_policy_mask_threshold": 0.02}),
    "off-policy-mask-of-sampler": Case({"off_policy_mask_threshold": 0.02}, Ragged(sampler=True)),
    "sampler-ratio-of-tokens": Case(_VLLM, Ragged(ratio="token")),
    "sampler-ratio-of-sequences": Case(
        {**_VLLM, "vllm_importance_sampling_mode": "sequence_mask"}, Ragged(ratio="sequence")
    ),
    "truncated": Case({"mask_truncated_completions": True}, Ragged(masked=True)),
    "tool-tokens": Case(ragged=Ragged(tools=True)),
    "entropy-quantile": Case({"top_entropy_quantile": 0.4}, whole=False),
    "entropy-bonus": Case({"entropy_coef": 0.05}, whole=False),
    "entropy-quantile-and-bonus": Case({"top_entropy_quantile": 0.4, "entropy_coef": 0.05}, whole=False),
    "adaptive-entropy": Case(
        {"use_adaptive_entropy": True, "entropy_coef": 0.05, "entropy_target": 9.0}, generations=3, whole=False
    ),
    "two-iterations": Case({"num_iterations": 2}),
    "two-iterations-of-half": Case({"num_iterations": 2}, slices=4, accumulation=2),
    "window-of-two-generations": Case(generations=2, slices=2, accumulation=4),
    "two-windows-of-a-generation": Case(slices=4, accumulation=2),
    "short-last-window": Case(slices=3, accumulation=2, whole=False),
    "one-micro-batch": Case(slices=1, accumulation=1),
    "nothing-to-learn-at-first": Case(generations=2, silent=(0,)),
    "half-of-a-window-without-signal": Case(generations=2, slices=2, accumulation=4, silent=(1,)),
    "few-groups": Case(ragged=Ragged(groups=3, silent=0.67)),
    "adapters": Case(lora=True),
    "adapters-kl": Case({"beta": 0.1}, Ragged(reference=True), lora=True),
    "checkpointing": Case({"gradient_checkpointing": True}),
}
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
_TIGHT = {
    **_VLLM,
    "vllm_importance_sampling_mode": "token_truncate",
    "vllm_importance_sampling_clip_max": 1.3,
    "vllm_importance_sampling_clip_min": 0.6,
}
# Nothing is left out: the trainers sample, take old and reference log-probabilities, and score.
SAMPLED: dict[str, Case] = {
    **{mode: Case({**_TIGHT, "vllm_importance_sampling_mode": mode}, sampled="all") for mode in MODES},
    "unknown-logps": Case(_TIGHT, sampled="nan"),
    "truncated": Case({**_TIGHT, "mask_truncated_completions": True}, sampled="all"),
    "uncorrected": Case({**_VLLM, "vllm_importance_sampling_correction": False}, sampled="all"),
    "kl": Case({**_TIGHT, "beta": 0.1}, sampled="all"),
    "adapters-kl": Case({**_TIGHT, "beta": 0.1}, sampled="all", lora=True),
    "off-policy-mask": Case({**_TIGHT, "off_policy_mask_threshold": 0.02}, sampled="all"),
    "vespo": Case({**_TIGHT, "loss_type": "vespo", "vllm_importance_sampling_mode": "token_mask"}, sampled="all"),
    "two-iterations": Case({**_TIGHT, "num_iterations": 2}, sampled="all", generations=2),
    "two-windows-of-a-generation": Case(_TIGHT, sampled="all", slices=4, accumulation=2, generations=2),
    "window-of-two-generations": Case(_TIGHT, sampled="all", slices=2, accumulation=4, generations=4),
    "window-of-one-and-a-half": Case(_TIGHT, sampled="all", slices=2, accumulation=3, generations=3, whole=False),
    "entropy-bonus": Case({**_TIGHT, "entropy_coef": 0.05}, sampled="all", whole=False),
    "bnpo": Case({**_TIGHT, "loss_type": "bnpo"}, sampled="all", whole=False),
}
# Kinds of models, each with what may hinder a saving. The router's loss is a mean over a micro-batch.
MODELS: dict[str, Case] = {
    kind: Case(policy=kind, whole=kind != "experts")
    for kind in ("llama-tied", "qwen2", "qwen3", "gemma", "sliding", "gpt2", "experts")
}
SAVINGS: dict[str, Mapping[str, Any]] = {
    "none": NOTHING_SAVED,
    "budget": {**NOTHING_SAVED, "max_tokens_per_batch": 64},
    "budget-auto": {**NOTHING_SAVED, "max_tokens_per_batch": "auto"},
    "prompts-as-rows": {**NOTHING_SAVED, "shared_prompt": "rows"},
    "prompts-cached": {**NOTHING_SAVED, "shared_prompt": "cache"},
    "prompts-as-rows-in-budget": {**NOTHING_SAVED, "shared_prompt": "rows", "max_tokens_per_batch": 64},
    "prompts-cached-in-budget": {**NOTHING_SAVED, "shared_prompt": "cache", "max_tokens_per_batch": 64},
    "zero-advantage": {**NOTHING_SAVED, "skip_zero_advantage": True},
    "equal-rows": {**NOTHING_SAVED, "reuse_equal_rows": True},
    "old-logps": {**NOTHING_SAVED, "skip_old_logps": True},
    "all": ALL_SAVINGS,
}


def can_not_be_had(case: Case, savings: str) -> bool:
    """Whether the way of sharing prompts that is asked for isn't exact for this model or training, and so refused."""
    way = SAVINGS[savings]["shared_prompt"]
    hinders_cache = case.policy == "sliding" or bool(case.settings.get("gradient_checkpointing"))
    return (way in ("rows", "cache") and case.policy == "gpt2") or (way == "cache" and hinders_cache)
