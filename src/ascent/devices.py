"""Which accelerator this is: one small interface over npu, cuda and cpu.

Together with `compat/` and `rollout/weights/` this is the only place that names a vendor's module. torch is imported
when a function needs it; the vendor's own package is loaded by torch (its `torch.backends` entry point).
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from ascent.errors import InputError

if TYPE_CHECKING:
    import torch

Kind = Literal["npu", "cuda", "cpu"]


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What a device is doing now. Bytes; `utilization` in percent and `power_watts` are None when the device doesn't
    report them. On CPU `used` is this process's resident memory."""

    used_bytes: int
    total_bytes: int
    peak_bytes: int
    utilization: float | None = None
    power_watts: float | None = None


def kind() -> Kind:
    """The accelerator that training will use: npu before cuda (as accelerate chooses), else cpu."""
    import torch

    npu = getattr(torch, "npu", None)
    if npu is not None and npu.is_available():
        return "npu"
    return "cuda" if torch.cuda.is_available() else "cpu"


def module(device_kind: Kind) -> ModuleType | None:
    """torch's module for an accelerator (`torch.npu`, `torch.cuda`); None for cpu."""
    import torch

    return None if device_kind == "cpu" else getattr(torch, device_kind)


def count() -> int:
    """How many accelerators are visible; 1 on a CPU machine."""
    accelerator = module(kind())
    return 1 if accelerator is None else int(accelerator.device_count())


def current() -> torch.device:
    """The current device with its index (accelerate leaves the index out on a single npu)."""
    import torch

    device_kind = kind()
    accelerator = module(device_kind)
    return torch.device("cpu") if accelerator is None else torch.device(device_kind, accelerator.current_device())


def name() -> str:
    """The device's product name; the processor's model name on CPU."""
    accelerator = module(kind())
    if accelerator is not None:
        return str(accelerator.get_device_name())
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as cpuinfo:
        models = [line.split(":", 1)[1].strip() for line in cpuinfo if line.lower().startswith("model name")]
    return models[0] if models else "cpu"


def supports_bf16() -> bool:
    """Whether bfloat16 runs natively. False on CPU, where it works but is emulated on most processors."""
    accelerator = module(kind())
    return bool(accelerator is not None and accelerator.is_bf16_supported())


def collective_backend() -> str:
    """The `torch.distributed` backend for this device."""
    return {"npu": "hccl", "cuda": "nccl", "cpu": "gloo"}[kind()]


def synchronize() -> None:
    """Wait for queued work, so that wall-clock times mean something. No-op on CPU."""
    accelerator = module(kind())
    if accelerator is not None:
        accelerator.synchronize()


def use() -> DeviceUse:
    """Memory, and utilization and power where the device reports them."""
    accelerator = module(kind())
    if accelerator is None:
        return _process_memory()
    free, total = accelerator.mem_get_info()
    return DeviceUse(
        used_bytes=total - free,
        total_bytes=total,
        peak_bytes=accelerator.max_memory_allocated(),
        utilization=_reported(accelerator, "utilization"),
        power_watts=_reported(accelerator, "power_draw", scale=1e-3),
    )


def restricted_to(device_kind: str, indices: Sequence[int], environment: Mapping[str, str]) -> dict[str, str]:
    """The variable that shows a new process only some of the devices that `environment` shows; {} on cpu.

    `indices` count the devices that are visible now. Raises InputError for one that isn't.
    """
    variable = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}.get(device_kind)
    if variable is None:
        return {}
    visible = [name.strip() for name in environment.get(variable, "").split(",") if name.strip()]
    for index in indices:
        if index < 0 or (visible and index >= len(visible)):
            raise InputError(f"device {index}: {variable}={environment.get(variable)} shows {len(visible)} devices")
    return {variable: ",".join(visible[index] if visible else str(index) for index in indices)}


def _reported(accelerator: ModuleType, query: str, scale: float = 1.0) -> float | None:
    """A figure that the driver may not give: the query may be absent, need a package, or be refused."""
    if not hasattr(accelerator, query):
        return None
    try:
        return float(getattr(accelerator, query)()) * scale
    except (ImportError, RuntimeError, OSError):
        return None


def _process_memory() -> DeviceUse:
    page = os.sysconf("SC_PAGE_SIZE")
    with open("/proc/self/statm", encoding="ascii") as statm:
        resident = int(statm.read().split()[1]) * page
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return DeviceUse(resident, os.sysconf("SC_PHYS_PAGES") * page, peak)
