"""Forward and backward passes in float32 throughout, for comparison with those of a training in mixed precision."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

_HALF = (torch.float16, torch.bfloat16)


def computes_in_full(accelerator: Any, model: Any) -> bool:
    """Whether passes are in float32 anyway."""
    return not accelerator.native_amp and not any(each.dtype in _HALF for each in model.parameters())


@contextlib.contextmanager
def full_precision(accelerator: Any, model: Any) -> Iterator[None]:
    """Inside, nothing is cast to half precision, and weights that aren't trained are float32 copies of what they are.

    accelerate casts in `accelerator.autocast()`, and around the `forward` of a model that it has prepared.
    """
    unwrapped = accelerator.unwrap_model(model)
    frozen = [each for each in unwrapped.parameters() if not each.requires_grad and each.dtype in _HALF]
    kept = [each.data for each in frozen]
    casts, cast_forward = accelerator.native_amp, vars(unwrapped).get("forward")
    try:
        for each in frozen:
            each.data = each.data.float()
        accelerator.native_amp = False
        if casts and cast_forward is not None:
            unwrapped.forward = unwrapped._original_forward
        yield
    finally:
        accelerator.native_amp = casts
        if casts and cast_forward is not None:
            unwrapped.forward = cast_forward
        for each, data in zip(frozen, kept, strict=True):
            each.data = data
