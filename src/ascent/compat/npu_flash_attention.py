"""transformers' `flash_attention_2` on an NPU takes windows, softcaps and sinks, and computes without them.

`integrations/npu_flash_attention.py` hands `npu_fusion_attention` the causal mask only; what else a model asks of its
attention ends in `**kwargs`, without a word. It also brings the boundaries of packed sequences to the host twice in
every layer, each a wait for the device, unless they are there already. Seen in transformers 5.5.4 to 5.17.
"""

from __future__ import annotations

from typing import Any

import torch


def left_out(config: Any, device: torch.device) -> tuple[str, ...]:
    """What a model of this text configuration asks of its attention, and would not get from `flash_attention_2`.

    Each is a setting of the configuration with its value.
    """
    if device.type != "npu":
        return ()
    layers = getattr(config, "layer_types", None) or ()
    slides = "sliding_attention" in layers if layers else getattr(config, "use_sliding_window", True)
    asked = {
        "sliding_window": getattr(config, "sliding_window", None) if slides else None,
        "attn_logit_softcapping": getattr(config, "attn_logit_softcapping", None),
    }
    found = [f"{name}={value}" for name, value in asked.items() if value is not None]
    if getattr(config, "model_type", "") == "gpt_oss":
        found.append("attention sinks")
    return tuple(found)


def where_boundaries_belong(device: torch.device) -> torch.device:
    """Where the attention of a model on `device` reads the boundaries of packed sequences without waiting."""
    return torch.device("cpu") if device.type == "npu" else device
