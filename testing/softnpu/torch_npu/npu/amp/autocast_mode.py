"""Autocast under its older name."""

from __future__ import annotations

import torch


class autocast(torch.amp.autocast_mode.autocast):  # noqa: N801
    """`torch.autocast("npu", ...)`."""

    def __init__(self, enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True) -> None:
        super().__init__("npu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)
