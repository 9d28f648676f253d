"""What an update needs around vLLM's layer-wise reload, which holds weights back until their layer is complete.

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
