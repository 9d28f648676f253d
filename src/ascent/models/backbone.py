"""A language model's backbone, and its forward pass with another in the backbone's place.

What a model does with hidden states (head, softcap, scale, casts, TRL's fused head) is its own. So whoever wants it for
hidden states of their own leaves the model as it is and, for the time of one call, gives it another backbone. The call
goes through whatever wraps the model, which sees one forward pass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

Forward = Callable[..., Any]


def transformers_model(model: torch.nn.Module) -> Any:
    """The transformers model inside the wrappers of data parallelism and of PEFT, or the model itself."""
    inner: Any = model
    while isinstance(inner, DistributedDataParallel | FullyShardedDataParallel):
        inner = inner.module
    return inner.get_base_model() if hasattr(inner, "peft_config") else inner


@contextlib.contextmanager
def backbone_replaced(base: Any, replacement: Callable[..., Any]) -> Iterator[None]:
    """Inside, the backbone of a transformers model gives what `replacement(its own forward, *arguments, **keywords)`
    gives: an output of transformers' kind, with `last_hidden_state`."""
    backbone = base.base_model
    own = backbone.forward
    instance = vars(backbone).get("forward")
    backbone.forward = lambda *arguments, **keywords: replacement(own, *arguments, **keywords)
    try:
        yield
    finally:
        if instance is None:
            del backbone.forward
        else:
            backbone.forward = instance
