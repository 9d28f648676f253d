"""The gradient scaler under its older name."""

from __future__ import annotations

import torch


class GradScaler(torch.amp.GradScaler):
    """`torch.amp.GradScaler("npu", ...)`; a scale that doesn't change (`dynamic=False`) is not provided."""

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        dynamic: bool = True,
        enabled: bool = True,
    ) -> None:
        if not dynamic:
            raise NotImplementedError("the software NPU's GradScaler has no static scale")
        super().__init__("npu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)
