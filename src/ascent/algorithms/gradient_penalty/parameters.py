"""Which of a model's trained weights are moved to take the second gradient."""

from __future__ import annotations

import torch
from torch import nn

from ascent.algorithms.gradient_penalty.settings import Parameters


def moved_parameters(model: nn.Module, which: Parameters) -> set[nn.Parameter]:
    """The trained parameters of `model`, which may be wrapped, that `which` names (see `GPRO`)."""
    trained = {parameter for parameter in model.parameters() if parameter.requires_grad}
    if which == "all":
        return trained
    if which == "norms":
        norms = (module for module in model.modules() if "norm" in type(module).__name__.lower())
        return trained & {parameter for module in norms for parameter in module.parameters(recurse=False)}
    return trained - _embeddings_and_head(model)


def _embeddings_and_head(model: nn.Module) -> set[nn.Parameter]:
    found: set[nn.Parameter] = set()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            found |= set(module.parameters())
        head = getattr(module, "get_output_embeddings", None)
        if callable(head) and isinstance(layer := head(), torch.nn.Module):
            found |= set(layer.parameters())
    return found
