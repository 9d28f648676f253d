"""Which trainings GPRO can change the gradients of."""

from __future__ import annotations

from typing import Any

import torch

from ascent.algorithms.gradient_penalty.settings import PenaltySettings
from ascent.errors import InputError

# These detach the ratio of the policies: the loss that they differentiate is another one at each place, so that the
# difference of two gradients isn't the gradient of a norm.
_DETACHED_LOSSES = ("cispo", "vespo")
# These choose the tokens of the loss by the policy as it is: at moved weights they would be others.
_CHOOSE_TOKENS = {"off_policy_mask_threshold": None, "top_entropy_quantile": 1.0}
_STEP_IN_BACKWARD = ("lomo", "adalomo", "layerwise")  # in names of optimizers


def check(settings: PenaltySettings, trainer: Any) -> None:
    """Raises InputError for a training in which no second gradient can be taken, or which it would say nothing of."""
    args, accelerator = trainer.args, trainer.accelerator
    if args.loss_type in _DETACHED_LOSSES:
        raise InputError(
            f"loss_type={args.loss_type} with GPRO: this loss takes the ratio of the policies as a constant, so a "
            "difference of its gradients is not the gradient of a norm",
            "Take loss_type=dapo, grpo, dr_grpo, bnpo, sapo or luspo, or algorithm=grpo.",
        )
    for name, usual in _CHOOSE_TOKENS.items():
        if (value := getattr(args, name)) != usual:
            raise InputError(
                f"{name}={value} with GPRO: it chooses the loss's tokens by the policy as it is, so at moved weights "
                "another function would be differentiated",
                f"Leave out {name}, or take algorithm=grpo.",
            )
    optimizer = str(getattr(args.optim, "value", args.optim))
    if any(part in optimizer for part in _STEP_IN_BACKWARD):
        raise InputError(
            f"optim={optimizer} with GPRO: it changes the weights within the backward pass, before their second "
            "gradient can be taken",
            "Take another optimizer, such as adamw_torch.",
        )
    _check_sharding(settings, trainer, accelerator)
    half = {each.dtype for each in trainer.model.parameters() if each.requires_grad} - {torch.float32, torch.float64}
    if half:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in half))
        raise InputError(
            f"weights in {names} with GPRO: most of a small step of the weights is lost in their rounding",
            "Train float32 weights (model.dtype=float32; trainer.bf16 may stay on), or adapters (model.lora).",
        )


def _check_sharding(settings: PenaltySettings, trainer: Any, accelerator: Any) -> None:
    if trainer.is_deepspeed_enabled:
        raise InputError(
            "DeepSpeed with GPRO: it changes the weights within the backward pass",
            "Shard with FSDP (trainer.fsdp, fsdp_version: 2), or take algorithm=grpo.",
        )
    if not trainer.is_fsdp_enabled:
        return
    if not accelerator.is_fsdp2:
        raise InputError(
            "FSDP 1 with GPRO: its flat weights can't be moved by layer",
            "Set fsdp_version: 2 in trainer.fsdp_config.",
        )
    if settings.radius == "auto" and accelerator.mixed_precision != "no":
        raise InputError(
            "gradient_penalty_radius=auto needs passes in float32 to compare with, which FSDP's mixed precision "
            f"({accelerator.mixed_precision}) can't give",
            "Give a number, found with one process, or turn off mixed precision (trainer.bf16=false).",
        )
