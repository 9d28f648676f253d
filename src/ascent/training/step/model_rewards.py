"""Reward functions that are models, scored as completions end: which may be, and put in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from accelerate import DistributedType
from transformers import PreTrainedModel

from ascent.errors import InputError
from ascent.rewards.model import ModelReward
from ascent.rollout.engine import EnginePlace
from ascent.training.dropout import drops_out

Setting = Literal["auto", "on", "off"]
_SHARDED = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM)


def stream_model_rewards(trainer: Any, place: EnginePlace, tell: Callable[[str], None]) -> None:
    """Put a `ModelReward` in the place of each model among the reward functions of a TRL GRPOTrainer, as its argument
    `stream_reward_models` asks; `place` is where completions are sampled, `tell` gets a sentence where `auto` does not.

    Raises InputError for another setting, and where `on` would not give TRL's rewards.
    """
    setting = getattr(trainer.args, "stream_reward_models", "off")
    if setting not in ("auto", "on", "off"):
        raise InputError(f"stream_reward_models={setting!r}: should be auto, on or off")
    for number, function in enumerate(trainer.reward_funcs):
        if setting == "off" or not isinstance(function, torch.nn.Module):
            continue
        name = trainer.reward_func_names[number]
        wrong = inexact(function, trainer)
        if wrong is not None and setting == "on":
            raise InputError(f"stream_reward_models=on: {name}: {wrong}", 'Set it to "auto" or "off".')
        if reason := wrong or (needless(place) if setting == "auto" else None):
            tell(f"reward model {name}: scored when all completions are there: {reason}")
            continue
        trainer.reward_funcs[number] = ModelReward(
            function,
            trainer.reward_processing_classes[number],
            name,
            device=trainer.accelerator.device,
            template_settings=trainer.chat_template_kwargs,
        )


def inexact(model: torch.nn.Module, trainer: Any) -> str | None:
    """Why a model's scores, computed in a thread of this rank, would not be TRL's; None if they would."""
    if trainer.accelerator.distributed_type in _SHARDED:
        return "its weights are sharded over ranks, which must compute it at the same time"
    if not isinstance(model, PreTrainedModel):
        return f"{type(model).__name__} is no model of transformers, so nothing is known of it"
    if model.training and drops_out(model):
        return "it is in training mode and drops out at random (call eval() on it)"
    if any(getattr(trainer._tokenizer, name, None) is not None for name in ("response_template", "response_schema")):
        return "completions are parsed before they are scored (the tokenizer has a response template)"
    return None


def needless(place: EnginePlace) -> str | None:
    """Why nothing is gained by scoring beside sampling, though it may be done; None if there is."""
    if place is EnginePlace.TRAINERS_MODEL:
        return "this engine gives all completions at once"
    if place is EnginePlace.TRAINERS_PROCESS:
        return "the engine samples on the device that would score (stream_reward_models=on does it all the same)"
    return None
