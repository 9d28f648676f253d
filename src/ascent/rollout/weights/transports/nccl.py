"""`nccl`: weights by broadcast between CUDA GPUs.

Sources: vLLM 0.23 `distributed/weight_transfer/nccl_engine.py` (static `trainer_init` and `trainer_send_weights`,
packed settings with each update); vLLM 0.31 `nccl_common.py` and `packed_tensor.py` (packed settings at
initialisation); `device_communicators/pynccl.py` of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ascent.rollout.weights.transports.base import Reach
from ascent.rollout.weights.transports.chunks import Chunk, described
from ascent.rollout.weights.transports.collective import CollectiveTransport
from ascent.rollout.weights.transports.collective_api import BUFFERS, CollectiveApi, StaticApi, group_info, packing
from ascent.rollout.weights.update_api import UpdateApi


class NcclTransport(CollectiveTransport):
    """Every GPU of the servers, and one of the trainer's, in one group."""

    backend: ClassVar[str] = "nccl"
    library: ClassVar[str] = "NCCL"
    reach: ClassVar[Reach] = Reach(
        "a broadcast between GPUs, each with one member of the group",
        device_kinds=("cuda",),
        devices="own",
    )

    def _api_for(self, servers: UpdateApi, buffer_bytes: int) -> CollectiveApi:
        if servers.stateful_trainer:
            return StatefulNcclApi(buffer_bytes)
        return StaticNcclApi("vllm.distributed.weight_transfer.nccl_engine", "NCCL", buffer_bytes)


def _abort(group: Any) -> None:
    """vLLM's `destroy` is an `ncclCommAbort`: it ends collectives that wait, from any thread, within five seconds."""
    group.destroy()


class StaticNcclApi(StaticApi):
    """vLLM before 0.28."""

    __slots__ = ()
    ends_waiting: ClassVar[bool] = True

    def destroy(self, group: Any) -> None:
        """See CollectiveApi."""
        _abort(group)


@dataclass(frozen=True, slots=True)
class StatefulNcclApi:
    """vLLM from 0.28 on."""

    buffer_bytes: int
    ends_waiting: ClassVar[bool] = True

    def worker_info(self, address: str, port: int, rank_offset: int, world_size: int) -> dict[str, Any]:
        """See CollectiveApi."""
        return group_info(address, port, world_size) | {"rank_offset": rank_offset} | packing(self.buffer_bytes)

    def update_info(self, chunk: Chunk) -> dict[str, Any]:
        """See CollectiveApi."""
        return dict(described(chunk))

    def open(self, address: str, port: int, world_size: int) -> Any:
        """See CollectiveApi."""
        from vllm.distributed.weight_transfer.nccl_common import trainer_init

        return trainer_init(group_info(address, port, world_size))

    def send(self, group: Any, chunk: Chunk) -> None:
        """See CollectiveApi."""
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

        packed_nccl_broadcast_producer(
            iterator=iter(chunk),
            group=group,
            src=0,
            post_iter_func=lambda item: item[1],
            buffer_size_bytes=self.buffer_bytes,
            num_buffers=BUFFERS,
        )

    def destroy(self, group: Any) -> None:
        """See CollectiveApi."""
        _abort(group)
