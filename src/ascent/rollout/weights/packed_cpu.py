"""New weights into a vLLM model of this process, on CPU.

vLLM's CPU build packs the weights of linear layers for its matrix libraries and leaves the parameters empty, so that
they can't be loaded in place. vLLM's layer-wise reload rebuilds and packs each layer anew; it forgets the packed copy
of an output head that is tied to the embedding, which is therefore packed again here. Without packing, sampling would
be slower (benchmarks/cpu_packing.py). Its seam is `in_place.WeightLoader`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ascent.rollout.in_vllm import tied_head
from ascent.rollout.weights.in_place import InPlaceWeights, load_all

if TYPE_CHECKING:
    from torch import Tensor


class CpuWeights:
    """Weights that vLLM's CPU platform may have packed."""

    def load(self, model: Any, model_config: Any, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """See `in_place.WeightLoader`."""
        if not tied_head.is_packed(model):
            InPlaceWeights().load(model, model_config, named_tensors)
            return
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        initialize_layerwise_reload(model)
        load_all(model, named_tensors)
        finalize_layerwise_reload(model, model_config)
        tied_head.pack_again(model)
