"""`ipc`: weights to one server on the trainer's own CUDA GPU. Sources: vLLM 0.23 and 0.31 `ipc_engine.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from ascent.rollout.weights.transports.base import Reach
from ascent.rollout.weights.transports.chunks import Chunk
from ascent.rollout.weights.transports.device_ipc import DeviceIpcTransport, Post, send_by_static_methods
from ascent.rollout.weights.update_api import UpdateApi

if TYPE_CHECKING:
    from torch import Tensor


class IpcTransport(DeviceIpcTransport):
    """vLLM's engine; before 0.28 it needs `ray` installed on both sides."""

    backend: ClassVar[str] = "ipc"
    reach: ClassVar[Reach] = Reach(
        "handles of the GPU's memory, which trainer and server share",
        device_kinds=("cuda",),
        same_host=True,
        devices="shared",
        pickled_handles=True,
    )

    def _send_chunk(self, servers: UpdateApi, chunk: Chunk, size: int, post: Post) -> None:
        if servers.stateful_trainer:
            _send_stateful(chunk, size, post)
        else:
            send_by_static_methods("vllm.distributed.weight_transfer.ipc_engine", "IPC", chunk, size, post)


def _send_stateful(chunk: Chunk, size: int, post: Post) -> None:
    """vLLM from 0.28 on; the calls around an update are the delivery's, so the client leaves them out."""
    from vllm.distributed.weight_transfer.base import WeightSource
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo, IPCTrainerWeightTransferEngine

    class Source(WeightSource):
        def metadata(self) -> list[Any]:
            raise NotImplementedError  # not asked for by this engine

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return iter(chunk)

    class Client:
        def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

        def start_weight_update(self) -> None: ...

        def update_weights(self, update_info: Any) -> None:
            post(update_info)

        def finish_weight_update(self, weight_version: str | None = None) -> None: ...

    info = IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=size)
    engine = IPCTrainerWeightTransferEngine.trainer_init(info, client=Client(), source=Source())
    engine.send_weights()
