"""vLLM's side of the transport `ascent_shm`: weights out of shared memory into the model.

vLLM from 0.25 on lets an engine own the update (`start_weight_update`, `finish_weight_update`); in 0.23 and 0.24 the
worker does the layer-wise reload itself and hands `load_weights` in. One class serves both.

Loaded inside vLLM's processes: the standard library, torch and vllm only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from ascent.rollout.in_vllm import layerwise, tied_head
from ascent.rollout.in_vllm.shared_memory import OpenedSegment, parse_slots


@dataclass
class ShmInitInfo(WeightTransferInitInfo):
    """Nothing: segments are named with each chunk."""


@dataclass
class ShmUpdateInfo(WeightTransferUpdateInfo):
    """One chunk: the segment's name, and name, dtype, shape and offset of each tensor in it."""

    segment: str
    tensors: list[dict[str, Any]]


class ShmWeightTransferEngine(WeightTransferEngine[ShmInitInfo, ShmUpdateInfo]):
    """Receives chunks of full tensors; the model's own loader shards and fuses them."""

    init_info_cls = ShmInitInfo
    update_info_cls = ShmUpdateInfo

    def init_transfer_engine(self, init_info: ShmInitInfo) -> None:
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

    def receive_weights(
        self, update_info: ShmUpdateInfo, load_weights: Callable[[list[tuple[str, torch.Tensor]]], Any] | None = None
    ) -> None:
        """Load one chunk. Raises SegmentError when its description doesn't fit the segment."""
        segment = OpenedSegment(update_info.segment)
        slots = parse_slots(update_info.tensors, segment.size)
        tensors = [(slot.name, segment.tensor(slot)) for slot in slots]
        with torch.no_grad():
            load = load_weights or cast(Any, self.model).load_weights
            load(tensors)
        layerwise.keep_what_waits(self.model, [tensor for _, tensor in tensors])

    def shutdown(self) -> None:
        """Nothing is kept between chunks."""

    @staticmethod
    def trainer_send_weights(iterator: Iterator[tuple[str, torch.Tensor]], trainer_args: Any) -> None:
        """vLLM up to 0.27 asks for this; the trainer's side is `rollout/weights/transports/shm.py`."""
        raise NotImplementedError("weights are sent by ascent.rollout.weights.delivery")


def _on_cpu(model: torch.nn.Module) -> bool:
    return next(model.parameters()).device.type == "cpu"
