"""How a broadcasting engine of vLLM is spoken to from the trainer's side.

Nothing checks that both sides pack alike, so the settings of packing come from one place here. `StaticApi` is the form
that vLLM before 0.28 and vllm-ascend share; what differs between libraries is in the files of their transports.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from ascent.rollout.engine import WeightSyncError
from ascent.rollout.weights.transports.chunks import Chunk, described

BUFFERS = 2


class CollectiveApi(Protocol):
    """How one engine is initialised and sent to. `open`, `send` and `destroy` run where the device is set."""

    # whether `destroy`, called from another thread, ends a `send` that waits for members that are gone
    ends_waiting: ClassVar[bool]

    def worker_info(self, address: str, port: int, rank_offset: int, world_size: int) -> dict[str, Any]:
        """`init_info` for the workers of one server, whose first has rank `rank_offset`."""
        ...

    def update_info(self, chunk: Chunk) -> dict[str, Any]:
        """`update_info` for a chunk."""
        ...

    def open(self, address: str, port: int, world_size: int) -> Any:
        """Join as rank 0; returns the communicator when all workers have joined."""
        ...

    def send(self, group: Any, chunk: Chunk) -> None:
        """Broadcast a chunk; workers must be receiving."""
        ...

    def destroy(self, group: Any) -> None:
        """Free what the communicator holds on the device. Without `ends_waiting` only when nothing is being sent."""
        ...


def group_info(address: str, port: int, world_size: int) -> dict[str, Any]:
    """Where the members of a group meet, and how many they are."""
    return {"master_address": address, "master_port": port, "world_size": world_size}


def packing(buffer_bytes: int) -> dict[str, Any]:
    """How tensors are packed for a broadcast."""
    return {"packed": True, "packed_buffer_size_bytes": buffer_bytes, "packed_num_buffers": BUFFERS}


@dataclass(frozen=True, slots=True)
class StaticApi:
    """vLLM before 0.28, and vllm-ascend: static methods of the engine; packed settings ride each update."""

    module: str
    prefix: str  # of the class names
    buffer_bytes: int
    ends_waiting: ClassVar[bool] = False

    def worker_info(self, address: str, port: int, rank_offset: int, world_size: int) -> dict[str, Any]:
        """See CollectiveApi."""
        return group_info(address, port, world_size) | {"rank_offset": rank_offset}

    def update_info(self, chunk: Chunk) -> dict[str, Any]:
        """See CollectiveApi."""
        return {**described(chunk), **packing(self.buffer_bytes)}

    def open(self, address: str, port: int, world_size: int) -> Any:
        """See CollectiveApi."""
        return self._engine().trainer_init(group_info(address, port, world_size))

    def send(self, group: Any, chunk: Chunk) -> None:
        """See CollectiveApi."""
        arguments = getattr(self._module(), f"{self.prefix}TrainerSendWeightsArgs")(
            group=group, **packing(self.buffer_bytes)
        )
        self._engine().trainer_send_weights(iter(chunk), arguments)

    def destroy(self, group: Any) -> None:
        """See CollectiveApi."""
        raise NotImplementedError

    def _engine(self) -> Any:
        return getattr(self._module(), f"{self.prefix}WeightTransferEngine")

    def _module(self) -> Any:
        return importlib.import_module(self.module)


def check_usable(group: Any, library: str) -> None:
    """Raise WeightSyncError for a communicator that would silently send nothing: its library could not be loaded."""
    if not getattr(group, "available", True) or getattr(group, "disabled", False):
        raise WeightSyncError(f"the trainer can't load {library}, so no weights would be sent")
