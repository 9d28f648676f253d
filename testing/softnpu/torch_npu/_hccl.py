"""The process-group backend `hccl`: gloo on the bytes of npu tensors."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from torch_npu import _C


def register() -> None:
    """Make `init_process_group("hccl")` work, and `hccl` the backend for npu tensors where none is named."""
    if dist.is_available() and "hccl" not in dist.Backend.backend_list:
        dist.Backend.register_backend("hccl", _make, devices=["npu"])


def _make(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.Backend:
    return _C.hccl_over(dist.ProcessGroupGloo(store, rank, size, timeout))
