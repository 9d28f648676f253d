"""What makes a model's forward passes random while it trains."""

from __future__ import annotations

import torch

# Chances that a config gives to leaving something out, and noise, while a model trains.
_CHANCES = (
    *("attention_dropout", "hidden_dropout", "dropout", "activation_dropout", "embedding_dropout", "attn_dropout"),
    *("attn_pdrop", "resid_pdrop", "embd_pdrop", "resid_dropout", "residual_dropout", "ffn_dropout", "layerdrop"),
    *("router_jitter_noise", "jitter_noise", "input_jitter_noise"),
)


def chance(model: torch.nn.Module) -> str | None:
    """Why no two passes of a model in training mode need be alike; None where they are. It may be wrapped by PEFT."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0:
            return f"dropout of {module.p:g} in {name}"
        attention = getattr(module, "attention_dropout", None)  # transformers' attention applies it as a function
        if isinstance(attention, int | float) and attention > 0:
            return f"attention_dropout of {attention:g} in {name}"
        if getattr(module, "neftune_noise_alpha", None):
            return f"NEFTune's noise in {name}"
    config = getattr(model, "config", None)
    for name in _CHANCES:
        value = getattr(config, name, None)
        if isinstance(value, int | float) and value > 0:
            return f"{name} of {value:g} in the model's config"
    return None


def drops_out(model: torch.nn.Module) -> bool:
    """Whether there is such a reason."""
    return chance(model) is not None
