"""A look at the largest numbers in a model before it is trained in float16, whose end is 65,504.

Under autocast the outputs of linear layers are float16. Some models have single channels with outputs of ten thousands,
which bfloat16 and float32 hold and float16 doesn't: the loss is then NaN whatever the scaler does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ascent.errors import InputError

LARGEST_FLOAT16 = 65504.0
_MARGIN = 8.0  # of what prompts show, for what training and other completions bring


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest absolute output of a linear layer, and which layer's."""

    value: float
    layer: str


def check_before_float16(model: Any, prompts: Sequence[Sequence[int]], tell: Callable[[str], None]) -> None:
    """Look at `prompts` (token ids). Raises InputError where float16 can't hold a layer's output; `tell` takes a
    warning where it nearly can't."""
    found = largest_output(model, prompts)
    if found is None:
        return
    what = f"{found.layer} gives outputs of up to {found.value:,.0f}, and float16 ends at {LARGEST_FLOAT16:,.0f}"
    if not found.value <= LARGEST_FLOAT16:
        raise InputError(
            f"fp16=true: {what}: the loss would be NaN",
            "Set bf16=true where the device has it, or npu_optim_level: O0.",
        )
    if found.value > LARGEST_FLOAT16 / _MARGIN:
        tell(f"warning: {what}. Watch numerics/overflow in metrics.jsonl; bf16 has no such end")


def largest_output(model: Any, prompts: Sequence[Sequence[int]]) -> Largest | None:
    """Over one forward pass a prompt in the dtype of the weights, without gradients; None without prompts."""
    largest: list[Largest] = []

    def look(name: str) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            value = float(output.detach().abs().max())
            if not largest or not value <= largest[0].value:
                largest[:] = [Largest(value, name)]

        return hook

    linear = [(name, each) for name, each in model.named_modules() if isinstance(each, torch.nn.Linear)]
    handles = [each.register_forward_hook(look(name)) for name, each in linear if not name.endswith("lm_head")]
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            for ids in prompts:
                model(input_ids=torch.tensor([list(ids)], device=model.device))
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return largest[0] if largest else None
