"""`npu_ipc`: weights to one server on the trainer's own NPU. Source: vllm-ascend 0.23.0 `npu_ipc_engine.py`."""

from __future__ import annotations

from typing import ClassVar

from ascent.rollout.engine import WeightSyncError
from ascent.rollout.weights.transports.base import Reach
from ascent.rollout.weights.transports.chunks import Chunk
from ascent.rollout.weights.transports.device_ipc import DeviceIpcTransport, Post, send_by_static_methods
from ascent.rollout.weights.update_api import UpdateApi


class NpuIpcTransport(DeviceIpcTransport):
    """vllm-ascend's engine; it needs `ray` installed on both sides."""

    backend: ClassVar[str] = "npu_ipc"
    reach: ClassVar[Reach] = Reach(
        "handles of the NPU's memory, which trainer and server share",
        device_kinds=("npu",),
        same_host=True,
        devices="shared",
        pickled_handles=True,
        before_vllm="0.28",
    )

    def _send_chunk(self, servers: UpdateApi, chunk: Chunk, size: int, post: Post) -> None:
        if servers.stateful_trainer:
            raise WeightSyncError("weights over NPU IPC are known for vllm-ascend 0.23 to 0.27")
        send_by_static_methods("vllm_ascend.distributed.weight_transfer.npu_ipc_engine", "NPUIPC", chunk, size, post)
