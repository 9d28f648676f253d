"""Whether a model's forward passes are random while it trains."""

from __future__ import annotations

import torch


def drops_out(model: torch.nn.Module) -> bool:
    """Whether a model in training mode leaves something out at random, so that no two passes need be alike."""
    return any(
        (isinstance(module, torch.nn.Dropout) and module.p > 0)
        or getattr(module, "attention_dropout", 0.0) > 0  # transformers' attention applies it as a function
        for module in model.modules()
        if isinstance(getattr(module, "attention_dropout", 0.0), float | int)
    )
