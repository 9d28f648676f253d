"""What an update needs around vLLM's layer-wise reload, which holds weights back until their layer is complete.

A layer `qkv` is fused from q, k and v, and vLLM packs it for its matrix library. An update arrives in two chunks of
shared memory, the second of which is written where the first one lay:

    initialize_layerwise_reload   qkv's packed weight is put aside, and its parameters are made anew without memory
    chunk 1 brings q and k        v is missing, so vLLM only notes "load q, load k later". It keeps the tensors that it
                                  was given, and these are views of chunk 1's memory
    keep_what_waits               q and k are copied, because the trainer is about to write chunk 2 over them
    chunk 2 brings v              qkv is complete: vLLM makes room, loads the copies of q and k, then v, and packs them
    finalize_layerwise_reload     a layer that got nothing takes its old weight back

When an update breaks off after chunk 1, "load q, load k later" stays behind. The next update would find the layer begun
already, and load the old q and k beside the new v. So every update begins with `end_left_over`; what that makes of half
a layer is replaced by the new weights.

Loaded inside vLLM's processes: the standard library, torch and vllm only.
"""

from __future__ import annotations

import sys
from typing import Any

import torch


def end_left_over(model: Any, model_config: Any) -> None:
    """End the reload of an update that failed: what it held back would mix with the new weights."""
    if "vllm.model_executor.model_loader.reload" not in sys.modules:
        return  # none was ever begun
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    if any(get_layerwise_info(layer).can_load() for layer in model.modules()):
        finalize_layerwise_reload(model, model_config)


def keep_what_waits(model: Any, tensors: list[torch.Tensor]) -> None:
    """Copy those of `tensors` that are held back: their memory is about to be filled anew."""
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    storages = {_storage(tensor) for tensor in tensors}
    for layer in model.modules():
        for _, bound in get_layerwise_info(layer).loaded_weights:
            for key, value in bound.arguments.items():
                if isinstance(value, torch.Tensor) and not value.is_meta and _storage(value) in storages:
                    bound.arguments[key] = value.clone()


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
