"""Use of device memory by this process, in bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from torch_npu import _C
from torch_npu.npu.utils import _get_device_index


def _index(device: Any) -> int:
    index = _get_device_index(device, optional=True)
    _C.check_device(index)
    return index


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """All counts by name, as `allocated_bytes.all.peak`."""
    return torch.accelerator.memory_stats(_index(device))


def memory_allocated(device: Any = None) -> int:
    """Bytes that tensors hold."""
    return memory_stats(device)["allocated_bytes.all.current"]


def max_memory_allocated(device: Any = None) -> int:
    """The most that tensors have held since the last reset."""
    return memory_stats(device)["allocated_bytes.all.peak"]


def memory_reserved(device: Any = None) -> int:
    """What a caching allocator would hold: the most allocated since the last `empty_cache`."""
    return memory_stats(device)["reserved_bytes.all.current"]


def max_memory_reserved(device: Any = None) -> int:
    """The most ever reserved since the last reset."""
    return memory_stats(device)["reserved_bytes.all.peak"]


def memory_cached(device: Any = None) -> int:
    """The old name of memory_reserved."""
    return memory_reserved(device)


def max_memory_cached(device: Any = None) -> int:
    """The old name of max_memory_reserved."""
    return max_memory_reserved(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Begin all peaks anew from what is held now."""
    torch.accelerator.reset_peak_memory_stats(_index(device))


def reset_max_memory_allocated(device: Any = None) -> None:
    """The old name of reset_peak_memory_stats."""
    reset_peak_memory_stats(device)


def reset_max_memory_cached(device: Any = None) -> None:
    """The old name of reset_peak_memory_stats."""
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Begin the totals of what was ever allocated and freed anew."""
    torch.accelerator.reset_accumulated_memory_stats(_index(device))


def empty_cache() -> None:
    """Let go of what is reserved and not held by tensors."""
    torch.accelerator.empty_cache()


def get_per_process_memory_fraction(device: Any = None) -> float:
    """The part of the device's memory that this process may allocate."""
    return _C.memory_fraction(_index(device))


def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
    """Limit this process to a part, 0 to 1, of the device's memory."""
    if not isinstance(fraction, float):
        raise TypeError("Invalid type for fraction argument, must be `float`")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    _C.set_memory_fraction(_index(device), fraction)


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The counts as text, one a line; `abbreviated` leaves out those that are 0."""
    rows = memory_stats(device).items()
    return "\n".join(f"{name:<50}{value:>20}" for name, value in rows if value or not abbreviated)
