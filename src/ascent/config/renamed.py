"""What became of settings that older TRL and transformers releases, and tutorials, still name.

`settle` moves what has a new name and drops what has lost its meaning; each change is told in a sentence. Versions are
those in which the old name stopped working.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Renamed:
    """`old` under `trainer:` became `new`, a dotted key of the run configuration (None: it has no successor)."""

    old: str
    new: str | None
    since: str
    why: str


RENAMED: tuple[Renamed, ...] = (
    Renamed(
        "vllm_device",
        None,
        "TRL 0.18, ignored since 0.16",
        "a colocated engine samples on the training device; for devices of its own it takes rollout.mode=server",
    ),
    Renamed("vllm_max_model_len", "rollout.max_model_len", "TRL 0.18", "TRL's own name is vllm_max_model_length"),
    Renamed("vllm_dtype", "rollout.dtype", "TRL 0.18", "moved"),
    Renamed("vllm_enable_prefix_caching", "rollout.prefix_caching", "TRL 0.18", "moved"),
    Renamed("torch_dtype", "model.dtype", "transformers 4.56", "it describes the model"),
    Renamed("dtype", "model.dtype", "never a trainer setting", "it describes the model"),
    Renamed(
        "attn_implementation",
        "model.attn_implementation",
        "never a trainer setting",
        "it describes the model",
    ),
    Renamed("vllm_guided_decoding_regex", "trainer.vllm_structured_outputs_regex", "TRL 0.28", "renamed"),
    Renamed("use_transformers_paged", "trainer.use_transformers_continuous_batching", "TRL 1.8", "renamed"),
    Renamed("vllm_importance_sampling_cap", "trainer.vllm_importance_sampling_clip_max", "TRL 1.6", "renamed"),
    Renamed(
        "max_prompt_length",
        "tasks.max_prompt_tokens",
        "TRL 0.28",
        "prompts are not cut any more; tasks with longer ones are left out and reported",
    ),
    Renamed(
        "use_liger_loss",
        None,
        "TRL 0.28",
        "log-probabilities are always computed in chunks, without the full logits",
    ),
    Renamed("wandb_log_unique_prompts", "trainer.log_unique_prompts", "TRL 0.27", "renamed"),
    Renamed("evaluation_strategy", "trainer.eval_strategy", "transformers 4.46", "renamed"),
    Renamed("no_cuda", "trainer.use_cpu", "transformers 5", "renamed"),
)
_BY_OLD_NAME = {entry.old: entry for entry in RENAMED}


def settle(trainer: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, tuple[Any, str]], list[str]]:
    """Split `trainer` into what stays there and what moved.

    Returns the remaining trainer settings, new dotted key -> (value, old dotted key), and a sentence for each old name.
    """
    stays: dict[str, Any] = {}
    moved: dict[str, tuple[Any, str]] = {}
    notes: list[str] = []
    for key, value in trainer.items():
        entry = _BY_OLD_NAME.get(key)
        if entry is None:
            stays[key] = value
            continue
        if entry.new is None:
            notes.append(f"trainer.{key}={value!r} is ignored (gone since {entry.since}): {entry.why}")
            continue
        notes.append(f"trainer.{key} is now {entry.new} (since {entry.since}): {entry.why}")
        moved[entry.new] = (value, f"trainer.{key}")
    return stays, moved, notes
