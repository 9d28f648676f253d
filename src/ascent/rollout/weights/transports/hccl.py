"""`hccl`: weights by broadcast between NPUs.

Source: vllm-ascend 0.23.0, `distributed/weight_transfer/hccl_engine.py` and `device_communicators/pyhccl.py`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ascent.rollout.engine import WeightSyncError
from ascent.rollout.weights.transports.base import Reach
from ascent.rollout.weights.transports.collective import CollectiveTransport
from ascent.rollout.weights.transports.collective_api import CollectiveApi, StaticApi
from ascent.rollout.weights.update_api import UpdateApi


class HcclTransport(CollectiveTransport):
    """Every NPU of the servers, and one of the trainer's, in one group."""

    backend: ClassVar[str] = "hccl"
    library: ClassVar[str] = "libhccl.so (set HCCL_SO_PATH, or source CANN's set_env.sh)"
    reach: ClassVar[Reach] = Reach(
        "a broadcast between NPUs, each with one member of the group",
        device_kinds=("npu",),
        devices="own",
        before_vllm="0.28",
    )

    def _api_for(self, servers: UpdateApi, buffer_bytes: int) -> CollectiveApi:
        if servers.stateful_trainer:
            raise WeightSyncError("weights over HCCL are known for vllm-ascend 0.23 to 0.27; use the transport shm")
        return HcclApi("vllm_ascend.distributed.weight_transfer.hccl_engine", "HCCL", buffer_bytes)


class HcclApi(StaticApi):
    """The communicator of vllm-ascend 0.23 has no method that ends it; newer ones have `close`. Neither is an abort."""

    __slots__ = ()

    def destroy(self, group: Any) -> None:
        """See CollectiveApi."""
        if hasattr(group, "close"):
            group.close()
        elif getattr(group, "available", False) and hasattr(group, "hccl"):
            group.available, group.disabled = False, True
            group.hccl.hcclCommDestroy(group.comm)
