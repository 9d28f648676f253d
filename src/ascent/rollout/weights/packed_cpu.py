"""New weights into a vLLM model of this process, on CPU.

vLLM's CPU build packs the weights of linear layers for its matrix libraries and leaves the parameters empty, so that
new values can't be loaded; and a tied output head keeps a packed copy of its own. `prepare` therefore keeps the packing
off, and weights stay ordinary tensors. Where a weight is packed all the same (a library that `prepare` doesn't know),
layers are rebuilt and packed anew with vLLM's layer-wise reload, and the output head is packed again by hand, because
the reload forgets a tied one. The contract is that of `in_place`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ascent.rollout.weights.in_place import InPlaceWeights, load_all

if TYPE_CHECKING:
    from torch import Tensor


class CpuWeights:
    """Weights that vLLM's CPU platform may have packed."""

    def __init__(self, *, keep_packing: bool = False) -> None:
        self._keep_packing = keep_packing

    def prepare(self) -> None:
        """Keep vLLM from packing linear layers in this process (oneDNN and the small-matrix kernels)."""
        if self._keep_packing:
            return
        from vllm import _custom_ops
        from vllm.model_executor.layers import utils as linear_kernels

        if hasattr(_custom_ops, "_supports_onednn"):
            _custom_ops._supports_onednn = False
        if hasattr(linear_kernels, "check_cpu_sgl_kernel"):
            linear_kernels.check_cpu_sgl_kernel = lambda *_args, **_kwargs: False

    def load(self, model: Any, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        """See the contract in `in_place`."""
        packed = any(parameter.numel() == 0 for parameter in model.parameters())
        if not packed and not self._keep_packing:
            InPlaceWeights().load(model, named_tensors)
            return
        self._reload(model, named_tensors)

    def _reload(self, model: Any, named_tensors: Iterable[tuple[str, Tensor]]) -> None:
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        initialize_layerwise_reload(model)
        load_all(model, named_tensors)
        finalize_layerwise_reload(model, self.model_config)
        head = getattr(model, "lm_head", None)
        if head is not None and getattr(head, "quant_method", None) is not None:
            head.quant_method.process_weights_after_loading(head)

    model_config: Any = None  # vLLM's ModelConfig, set by the engine that owns the model
