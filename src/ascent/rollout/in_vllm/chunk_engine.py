"""What vLLM's side of `ascent_shm` and `ascent_http` share: full tensors out of mapped memory into the model.

vLLM from 0.25 on lets an engine own the update (`start_weight_update`, `finish_weight_update`); in 0.23 and 0.24 the
worker does the layer-wise reload itself and hands `load_weights` in. One class serves both.

Loaded inside vLLM's processes: the standard library, torch and vllm only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from ascent.rollout.in_vllm import layerwise, tied_head
from ascent.rollout.in_vllm.shared_memory import OpenedSegment, parse_slots

Update = TypeVar("Update", bound=WeightTransferUpdateInfo)
LoadWeights = Callable[[list[tuple[str, torch.Tensor]]], Any]


@dataclass
class NothingToInit(WeightTransferInitInfo):
    """Each chunk says where it is."""


class ChunkEngine(WeightTransferEngine[NothingToInit, Update], Generic[Update]):
    """Receives chunks of full tensors; the model's own loader shards and fuses them."""

    init_info_cls = NothingToInit

    def init_transfer_engine(self, init_info: NothingToInit) -> None:
        """Nothing to set up."""
        del init_info

    def start_weight_update(self) -> None:
        """From vLLM 0.25 on: prepare the model for new weights."""
        layerwise.end_left_over(self.model, self.model_config)
        self._layerwise = not (_on_cpu(self.model) and not tied_head.is_packed(self.model))
        if self._layerwise:
            from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

            with torch.device(self.device):
                initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        """From vLLM 0.25 on: process what the loader left for the end."""
        if self._layerwise:
            from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

            with torch.device(self.device):
                finalize_layerwise_reload(self.model, self.model_config)
            if _on_cpu(self.model):
                tied_head.pack_again(self.model)

    def _load(self, segment: OpenedSegment, described: Any, load_weights: LoadWeights | None) -> None:
        """Load what `described` says to lie in `segment`. Raises SegmentError when it doesn't fit."""
        tensors = [(slot.name, segment.tensor(slot)) for slot in parse_slots(described, segment.size)]
        with torch.no_grad():
            load = load_weights or cast(Any, self.model).load_weights
            load(tensors)
        layerwise.keep_what_waits(self.model, [tensor for _, tensor in tensors])

    @staticmethod
    def trainer_send_weights(iterator: Iterator[tuple[str, torch.Tensor]], trainer_args: Any) -> None:
        """vLLM up to 0.27 asks for this; the trainer's side is in `rollout/weights/transports/`."""
        raise NotImplementedError("weights are sent by ascent.rollout.weights.delivery")


def _on_cpu(model: torch.nn.Module) -> bool:
    return next(model.parameters()).device.type == "cpu"
