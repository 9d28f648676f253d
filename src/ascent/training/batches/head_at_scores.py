"""The model's forward pass with a backbone of our own, so that its head sees the scored positions only.

TRL's fused head (`trl.trainer.utils.add_fused_lm_head`) asks the model's backbone for hidden states and makes
log-probabilities of them, with temperature, softcap, scale and casts. For the time of one call the backbone's `forward`
is replaced by a function that runs it as often as the layout wants and gives back the hidden states of the scored
positions, (1, M, H). The call itself goes through whatever wraps the model, which sees one forward pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutputWithPast

Backbone = Callable[..., Any]


@contextlib.contextmanager
def backbone_replaced(backbone: torch.nn.Module, hidden_states: Callable[[Backbone], torch.Tensor]) -> Iterator[None]:
    """Inside, the backbone gives `hidden_states(its own forward)` as its last hidden state, (1, M, H)."""
    own = backbone.forward
    instance = vars(backbone).get("forward")

    def forward(*_: Any, **__: Any) -> BaseModelOutputWithPast:
        found: Any = hidden_states(own)
        return BaseModelOutputWithPast(last_hidden_state=found)

    backbone.forward = forward
    try:
        yield
    finally:
        if instance is None:
            del backbone.forward
        else:
            backbone.forward = instance
