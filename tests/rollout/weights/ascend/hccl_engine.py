"""Stands in for vllm_ascend/distributed/weight_transfer/hccl_engine.py: broadcasts over gloo."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

distributed: Any = torch.distributed


@dataclass
class HCCLWeightTransferInitInfo:
    master_address: str
    master_port: int
    rank_offset: int
    world_size: int


@dataclass
class HCCLTrainerSendWeightsArgs:
    group: Any
    src: int = 0
    post_iter_func: Callable[[tuple[str, torch.Tensor]], torch.Tensor] | None = None
    packed: bool = False
    stream: Any = None
    packed_buffer_size_bytes: int = 2**30
    packed_num_buffers: int = 2


@dataclass
class HCCLWeightTransferUpdateInfo:
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    packed: bool = False
    packed_buffer_size_bytes: int = 2**30
    packed_num_buffers: int = 2

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.dtype_names) == len(self.shapes):
            raise ValueError("`dtype_names` and `shapes` should be of the same size as `names`")


class HostCommunicator:
    """In the place of PyHcclCommunicator; disabled, as that one, when its library can't be loaded."""

    def __init__(self, address: str, port: int, rank: int, world_size: int) -> None:
        self.disabled = bool(os.environ.get("STAND_IN_WITHOUT_HCCL"))
        self.available = not self.disabled
        store = distributed.TCPStore(address, port, world_size, rank == 0, timedelta(seconds=60))
        self._gloo = distributed.ProcessGroupGloo(store, rank, world_size, timedelta(seconds=8))
        self.hccl, self.comm = self, self._gloo  # the library's functions take the communicator that it made
        self.sending = self.destroyed = False

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        if self.disabled:
            return
        options = distributed.BroadcastOptions()
        options.rootRank = src
        self.sending = True
        try:
            self._gloo.broadcast([tensor], options).wait()
        finally:
            self.sending = False

    def hcclCommDestroy(self, comm: Any) -> None:  # noqa: N802  # the name is the library's
        assert comm is self._gloo
        assert not self.sending, "the library must not free what is in use"
        assert not self.destroyed
        self.destroyed = True


class HCCLWeightTransferEngine:
    init_info_cls = HCCLWeightTransferInitInfo
    update_info_cls = HCCLWeightTransferUpdateInfo

    def __init__(self, config: Any, parallel_config: Any, model: torch.nn.Module | None = None) -> None:
        self.parallel_config = parallel_config
        self.model_update_group: HostCommunicator | None = None

    def init_transfer_engine(self, init_info: HCCLWeightTransferInitInfo) -> None:
        rank = self.parallel_config.rank + init_info.rank_offset
        self.model_update_group = HostCommunicator(
            init_info.master_address, init_info.master_port, rank, init_info.world_size
        )

    def receive_weights(
        self,
        update_info: HCCLWeightTransferUpdateInfo,
        load_weights: Callable[[list[tuple[str, torch.Tensor]]], None],
    ) -> None:
        if self.model_update_group is None:
            raise RuntimeError("HCCL weight transfer not initialized. Call init_transfer_engine() first.")
        described = list(zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True))
        sizes = [math.prod(shape) * getattr(torch, dtype).itemsize for _, dtype, shape in described]
        for start, end in _buffers(sizes, update_info.packed_buffer_size_bytes):
            packed = torch.empty(sum(sizes[start:end]), dtype=torch.uint8)
            self.model_update_group.broadcast(packed, src=0)
            parts = packed.split(sizes[start:end])
            load_weights(
                [
                    (name, part.contiguous().view(getattr(torch, dtype)).view(*shape))
                    for (name, dtype, shape), part in zip(described[start:end], parts, strict=True)
                ]
            )

    @staticmethod
    def trainer_init(init_info: HCCLWeightTransferInitInfo | dict[str, Any]) -> HostCommunicator:
        assert isinstance(init_info, dict)
        return HostCommunicator(init_info["master_address"], init_info["master_port"], 0, init_info["world_size"])

    @staticmethod
    def trainer_send_weights(
        iterator: Iterator[tuple[str, torch.Tensor]],
        trainer_args: dict[str, Any] | HCCLTrainerSendWeightsArgs,
    ) -> None:
        assert isinstance(trainer_args, HCCLTrainerSendWeightsArgs)
        assert trainer_args.packed, "only the packed way stands here"
        tensors: list[torch.Tensor] = []
        done = False
        while not done:
            tensors = []
            while sum(tensor.numel() for tensor in tensors) <= trainer_args.packed_buffer_size_bytes:
                try:
                    _, tensor = next(iterator)  # an iterator, not merely an iterable
                except StopIteration:
                    done = True
                    break
                tensors.append(tensor.contiguous().view(torch.uint8).view(-1))
            if tensors:
                trainer_args.group.broadcast(torch.cat(tensors), src=trainer_args.src)


def _buffers(sizes: list[int], limit: int) -> Iterator[tuple[int, int]]:
    """A buffer is closed only after it has become longer than the limit, on both sides alike."""
    start, filled = 0, 0
    for place, size in enumerate(sizes):
        filled += size
        if filled > limit:
            yield start, place + 1
            start, filled = place + 1, 0
    if start < len(sizes):
        yield start, len(sizes)
