"""What the equality of gradients is tested with: losses, options of the loss, shapes of the window, savings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.training.batches.ragged_batches import Ragged
from tests.training.batches.windows import ALL_SAVINGS, NO_SAVING

LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo")
LEVELS = ("token", "sequence")
# Their means are over a micro-batch, so that only TRL with the same micro-batches is their measure.
MICRO_BATCH_LOSSES = ("bnpo",)


@dataclass(frozen=True)
class Case:
    """One training. Rows of a generation are trained on in `slices` micro-batches, `accumulation` of which make an
    optimizer step. `whole`: the measure is TRL with each window (or each generation in it) as one micro-batch;
    otherwise TRL with these micro-batches. `silent`: generations without any signal, by number."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    ragged: Ragged = field(default_factory=Ragged)
    policy: str = "llama"
    generations: int = 1
    slices: int = 3
    accumulation: int = 3
    whole: bool = True
    lora: bool = False
    silent: tuple[int, ...] = ()

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
# Kinds of models, each with what may hinder a saving. The router's loss is a mean over a micro-batch.
MODELS: dict[str, Case] = {
    kind: Case(policy=kind, whole=kind != "experts")
    for kind in ("llama-tied", "qwen2", "qwen3", "gemma", "sliding", "gpt2", "experts")
}
SAVINGS: dict[str, Mapping[str, Any]] = {
    "none": NO_SAVING,
    "budget": {**NO_SAVING, "max_tokens_per_batch": 64},
    "budget-auto": {**NO_SAVING, "max_tokens_per_batch": "auto"},
    "prompts-as-rows": {**NO_SAVING, "shared_prompt": "rows"},
    "prompts-cached": {**NO_SAVING, "shared_prompt": "cache"},
    "prompts-as-rows-in-budget": {**NO_SAVING, "shared_prompt": "rows", "max_tokens_per_batch": 64},
    "prompts-cached-in-budget": {**NO_SAVING, "shared_prompt": "cache", "max_tokens_per_batch": 64},
    "zero-advantage": {**NO_SAVING, "skip_zero_advantage": True},
    "equal-rows": {**NO_SAVING, "reuse_equal_rows": True},
    "all": ALL_SAVINGS,
}
