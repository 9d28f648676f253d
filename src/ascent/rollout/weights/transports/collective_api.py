"""The trainer's side of the broadcasting engines, `hccl` (vllm-ascend) and `nccl` (vLLM), in both generations.

Sources: vllm-ascend 0.23.0 `distributed/weight_transfer/hccl_engine.py`; vLLM 0.23 `nccl_engine.py` (static
`trainer_init` and `trainer_send_weights`, packed settings with each update); vLLM 0.31 `nccl_common.py` and
`packed_tensor.py` (packed settings at initialisation). Nothing checks that both sides pack alike, so the settings
come from one place here.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Protocol

from ascent.rollout.engine import WeightSyncError
from ascent.rollout.weights.transports.chunks import Chunk, described
from ascent.rollout.weights.update_api import Generation

_BUFFERS = 2


class CollectiveApi(Protocol):
    """How one engine is initialised and sent to. Everything but the `*_info` runs where the device is set."""

    def worker_info(self, address: str, port: int, rank_offset: int, world_size: int) -> dict[str, Any]:
        """`init_info` for the workers of one server, whose first has rank `rank_offset`."""
        ...

    def update_info(self, chunk: Chunk) -> dict[str, Any]:
        """`update_info` for a chunk."""
        ...

    def open(self, address: str, port: int, world_size: int) -> Any:
        """Join as rank 0; returns when all workers have joined."""
        ...

    def send(self, group: Any, chunk: Chunk) -> None:
        """Broadcast a chunk; workers must be receiving."""
        ...


def collective_api(backend: str, generation: Generation, buffer_bytes: int) -> CollectiveApi:
    """The API of `hccl` or `nccl` for servers of this generation. Raises WeightSyncError where there is none."""
    if backend == "hccl":
        if generation.stateful_trainer:
            raise WeightSyncError("weights over HCCL are known for vllm-ascend 0.23 to 0.27; use the transport shm")
        return StaticApi("vllm_ascend.distributed.weight_transfer.hccl_engine", "HCCL", buffer_bytes)
    if generation.stateful_trainer:
        return StatefulNcclApi(buffer_bytes)
    return StaticApi("vllm.distributed.weight_transfer.nccl_engine", "NCCL", buffer_bytes)


def _group(address: str, port: int, world_size: int) -> dict[str, Any]:
    return {"master_address": address, "master_port": port, "world_size": world_size}


def _packing(buffer_bytes: int) -> dict[str, Any]:
    return {"packed": True, "packed_buffer_size_bytes": buffer_bytes, "packed_num_buffers": _BUFFERS}


@dataclass(frozen=True, slots=True)
class StaticApi:
    """vLLM before 0.28, and vllm-ascend: static methods of the engine; packed settings ride each update."""

    module: str
    prefix: str  # of the class names
    buffer_bytes: int

    def worker_info(self, address: str, port: int, rank_offset: int, world_size: int) -> dict[str, Any]:
        """See CollectiveApi."""
        return _group(address, port, world_size) | {"rank_offset": rank_offset}

    def update_info(self, chunk: Chunk) -> dict[str, Any]:
        """See CollectiveApi."""
        return {**described(chunk), **_packing(self.buffer_bytes)}

    def open(self, address: str, port: int, world_size: int) -> Any:
        """See CollectiveApi."""
        return self._engine().trainer_init(_group(address, port, world_size))

    def send(self, group: Any, chunk: Chunk) -> None:
        """See CollectiveApi."""
        arguments = getattr(self._module(), f"{self.prefix}TrainerSendWeightsArgs")(
            group=group, **_packing(self.buffer_bytes)
        )
        self._engine().trainer_send_weights(iter(chunk), arguments)

    def _engine(self) -> Any:
        return getattr(self._module(), f"{self.prefix}WeightTransferEngine")

    def _module(self) -> Any:
        return importlib.import_module(self.module)


@dataclass(frozen=True, slots=True)
class StatefulNcclApi:
    """vLLM from 0.28 on."""

    buffer_bytes: int

    def worker_info(self, address: str, port: int, rank_offset: int, world_size: int) -> dict[str, Any]:
        """See CollectiveApi."""
        return _group(address, port, world_size) | {"rank_offset": rank_offset} | _packing(self.buffer_bytes)

    def update_info(self, chunk: Chunk) -> dict[str, Any]:
        """See CollectiveApi."""
        return dict(described(chunk))

    def open(self, address: str, port: int, world_size: int) -> Any:
        """See CollectiveApi."""
        from vllm.distributed.weight_transfer.nccl_common import trainer_init

        return trainer_init(_group(address, port, world_size))

    def send(self, group: Any, chunk: Chunk) -> None:
        """See CollectiveApi."""
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

        packed_nccl_broadcast_producer(
            iterator=iter(chunk),
            group=group,
            src=0,
            post_iter_func=lambda item: item[1],
            buffer_size_bytes=self.buffer_bytes,
            num_buffers=_BUFFERS,
        )


def check_usable(group: Any, backend: str) -> None:
    """Raise WeightSyncError for a communicator that would silently send nothing: its library could not be loaded."""
    if not getattr(group, "available", True) or getattr(group, "disabled", False):
        library = "libhccl.so (set HCCL_SO_PATH, or source CANN's set_env.sh)" if backend == "hccl" else "NCCL"
        raise WeightSyncError(f"the trainer can't load {library}, so no weights would be sent")
