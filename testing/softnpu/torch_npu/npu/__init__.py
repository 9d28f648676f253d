"""`torch.npu`: the part of Ascend's module that training libraries and Ascend's documentation use.

Every public name here exists in torch_npu 2.10.0.post4 with the same parameters
(tests/softnpu/test_softnpu_contract.py).
"""

from __future__ import annotations

import dataclasses
import os
import re
import warnings
from collections.abc import Callable

import torch

from torch_npu import _C
from torch_npu.npu.npu_config import (
    _allowHF32Conv,
    _allowHF32Matmul,
    _npuConfig,
    is_jit_compile_false,
    set_compile_mode,
    set_option,
)
from torch_npu.npu.utils import (
    StreamContext,
    _get_device_index,
    current_device,
    current_stream,
    default_stream,
    device,
    device_of,
    ipc_collect,
    is_bf16_supported,
    set_device,
    set_stream,
    stream,
    synchronize,
)

_NAME = "Ascend910B (software)"


@dataclasses.dataclass(frozen=True)
class _DeviceProperties:
    name: str
    total_memory: int


def is_available() -> bool:
    """Whether a device is visible."""
    return device_count() > 0


def device_count() -> int:
    """How many devices are visible (SOFTNPU_DEVICES, ASCEND_RT_VISIBLE_DEVICES)."""
    return _C.device_count()


def is_initialized() -> bool:
    """Whether a device was used in this process."""
    return _C.used() and not _C.in_bad_fork()


def init() -> None:
    """Use the current device. Raises RuntimeError in a process forked from one that used a device."""
    _lazy_init()


def _lazy_init() -> None:
    _C.check_device(_C.current_device())


def __getattr__(name: str) -> bool:
    # torch's activation checkpointing asks this variable whether there is a device state to keep.
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module 'torch.npu' has no attribute {name!r}")


def _lazy_call(cb: Callable[[], None]) -> None:
    cb()


def _is_in_bad_fork() -> bool:
    return _C.in_bad_fork()


def can_device_access_peer(device_id: int, peer_device_id: int) -> bool:
    """Always true for two devices that exist."""
    _existing(device_id)
    _existing(peer_device_id)
    return True


def get_device_name(device_name: torch.device | str | int | None = None) -> str:
    """The product name."""
    _existing(device_name)
    return _NAME


def get_device_properties(device_name: torch.device | str | int | None = None) -> _DeviceProperties:
    """`name` and `total_memory` (bytes)."""
    return _DeviceProperties(_NAME, mem_get_info(_existing(device_name))[1])


def mem_get_info(device: torch.device | str | int | None = None) -> tuple[int, int]:
    """Free and total bytes. Only this process's own use is known."""
    return _C.memory_info(_existing(device))


def get_device_capability(device: torch.device | str | int | None = None) -> tuple[int, int] | None:
    """What TORCH_NPU_DEVICE_CAPABILITY says, else None."""
    match = re.fullmatch(r"(\d+)\.(\d+)", os.environ.get("TORCH_NPU_DEVICE_CAPABILITY", ""))
    if match is None:
        warnings.warn("TORCH_NPU_DEVICE_CAPABILITY (major.minor) is not set: no capability to report", stacklevel=2)
        return None
    return int(match[1]), int(match[2])


def utilization(device: torch.device | str | int | None = None) -> int:
    """Percent. There is no hardware to be busy: 0."""
    _existing(device)
    return 0


def _existing(which: torch.device | str | int | None) -> int:
    index = _get_device_index(which, optional=True)
    if not 0 <= index < device_count():
        raise AssertionError(f"Invalid device id: {index}, of {device_count()} devices")
    return index


default_generators = tuple(_C.default_generator(index) for index in range(_C.present_devices))
config = _npuConfig()
matmul = _allowHF32Matmul()
conv = _allowHF32Conv()

from torch_npu.npu import amp as amp  # noqa: E402
from torch_npu.npu.autocast_utils import (  # noqa: E402
    get_amp_supported_dtype,
    get_autocast_dtype,
    is_autocast_enabled,
    set_autocast_dtype,
    set_autocast_enabled,
)
from torch_npu.npu.memory import (  # noqa: E402
    empty_cache,
    get_per_process_memory_fraction,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_npu.npu.random import (  # noqa: E402
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_npu.npu.streams import Event, Stream  # noqa: E402

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "amp",
    "can_device_access_peer",
    "config",
    "conv",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_autocast_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_autocast_enabled",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "is_jit_compile_false",
    "manual_seed",
    "manual_seed_all",
    "matmul",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_autocast_dtype",
    "set_autocast_enabled",
    "set_compile_mode",
    "set_device",
    "set_option",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
    "utilization",
]
