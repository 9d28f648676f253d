"""GRPOConfig: TRL's, every field under its own name and meaning, and ours beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trl.trainer.grpo_config import GRPOConfig as TRLConfig
from trl.trainer.utils import get_config_model_id


@dataclass
class GRPOConfig(TRLConfig):
    """`trl.GRPOConfig` with Ascent's settings.

    plain: run TRL's own path unchanged (its generation, its weight sync, rewards after sampling).
    seeded_sampling: give every completion of the vLLM engine its own seed, made of `seed`, the generation and its
        place in the batch, so that a run repeats however completions are batched or spread over processes. Off by
        default: vLLM draws for each such completion apart, which costs up to half of the sampling's speed on CPU.
    packing: compute log-probabilities and the update of rows without padding ("on"; refused where a model's attention
        would mix sequences), where that is exact ("auto"), or never ("off").
    stream_reward_models: score completions with reward functions that are models as they end ("on"), where nothing else
        needs the device meanwhile ("auto"), or as TRL does, all at the end ("off").
    """

    plain: bool = field(default=False, metadata={"help": "Run TRL's own path unchanged."})
    seeded_sampling: bool = field(
        default=False, metadata={"help": "Give every completion of the vLLM engine a seed of its own."}
    )
    stream_reward_models: str = field(
        default="auto", metadata={"help": "Reward models score completions as they end: auto, on or off."}
    )
    packing: str = field(default="auto", metadata={"help": "Rows without padding: auto, on or off."})


def default_arguments(model: Any) -> GRPOConfig:
    """The arguments of a trainer that is given none: TRL's, in a folder named after the model."""
    name = model if isinstance(model, str) else get_config_model_id(model.config)
    return GRPOConfig(f"{name.split('/')[-1]}-GRPO")
