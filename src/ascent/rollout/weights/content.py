"""Whether weights are still those that the engine was given, whoever changed them: by their content.

A count of optimizer steps misses what else changes weights: the best checkpoint that is loaded at the end, a resumed
one, a script that writes into them between two calls of `train`. Torch's own counters miss what is written through
`.data`. A digest costs about half of copying the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule

from ascent.rollout.in_vllm.fingerprints import fingerprint


def content_digest(model: Any) -> str:
    """32 hexadecimal digits for all parameters of `model`, as far as this rank holds them, and for which adapters are
    in use and how strongly. Equal digests mean equal weights; no collective call is made."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()  # a forward pass may have left it gathered
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in model.named_parameters():
        digest.update(fingerprint(name, _held_here(parameter)).encode())
    for state in _adapter_states(model):
        digest.update(state.encode())
    return digest.hexdigest()


def _held_here(parameter: Any) -> torch.Tensor:
    """This rank's part of a parameter (FSDP2: a DTensor; ZeRO-3: beside an empty one)."""
    held: torch.Tensor = getattr(parameter, "ds_tensor", parameter)
    to_local = getattr(held, "to_local", None)
    return held if to_local is None else to_local()


def _adapter_states(model: Any) -> Iterator[str]:
    """What of adapters is no parameter: which are active, merged or off, and their factors."""
    for name, module in model.named_modules():
        if hasattr(module, "active_adapters") and hasattr(module, "merged_adapters"):
            yield repr((name, module.active_adapters, module.merged_adapters, module.disable_adapters))
            yield repr(getattr(module, "scaling", None))
