"""Devices and streams: which is current."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._utils import _get_device_index as _torch_get_device_index

from torch_npu import _C

if TYPE_CHECKING:
    from torch_npu.npu.streams import Stream


def get_cann_version(module: str = "CANN") -> str:
    """There is no CANN here: an empty string."""
    return ""


def synchronize(device: Any = None) -> None:
    """All work has been done when its call returned; only the device's index is checked."""
    _C.check_device(_get_device_index(device, optional=True))


def ipc_collect() -> None:
    """Nothing is shared between processes."""


def set_device(device: Any) -> None:
    """Make a device the current one. Raises RuntimeError when there is no such device."""
    index = _get_device_index(device, optional=True)
    if index >= 0:
        _C.set_device(index)


def current_device() -> int:
    """The current device's index."""
    _C.check_device(_C.current_device())
    return _C.current_device()


class device:  # noqa: N801
    """`with torch.npu.device(1): ...` makes a device the current one for a while; a negative index does nothing."""

    def __init__(self, device: Any) -> None:
        self.idx = _get_device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            self.prev_idx = _C.current_device()
            _C.set_device(self.idx)

    def __exit__(self, *args: object) -> None:
        if self.idx >= 0:
            _C.set_device(self.prev_idx)


_DeviceContext = device  # parameters of that name hide the class


class device_of(device):  # noqa: N801
    """`with torch.npu.device_of(tensor): ...` makes the tensor's device the current one."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.get_device() if obj.is_npu else -1)


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device) and device.type not in (["npu", "cpu"] if allow_cpu else ["npu"]):
        raise ValueError(f"Expected a npu device, but got: {device}")
    if isinstance(device, _DeviceContext):
        return device.idx
    return _torch_get_device_index(device, optional, allow_cpu)


class StreamContext:
    """`with torch.npu.stream(s): ...` makes a stream the current one of its device."""

    def __init__(self, stream_ctx: Stream | None) -> None:
        self.stream = stream_ctx
        self._previous: Stream | None = None

    def __enter__(self) -> None:
        if self.stream is not None:
            self._previous = current_stream(self.stream.device)
            set_stream(self.stream)

    def __exit__(self, exec_type: object, exec_value: object, traceback: object) -> None:
        set_stream(self._previous)


def stream(stream: Stream | None) -> StreamContext:
    """A context in which the stream is current; None does nothing."""
    return StreamContext(stream)


def set_stream(stream: Stream | None) -> None:
    """Make a stream the current one of its device; None does nothing."""
    if stream is not None:
        _C.set_stream(stream.device_index, stream.stream_id)


def current_stream(device: Any = None) -> Stream:
    """The device's current stream."""
    index = _get_device_index(device, optional=True)
    return _stream(index, _C.current_stream(index))


def default_stream(device: Any = None) -> Stream:
    """The device's default stream."""
    return _stream(_get_device_index(device, optional=True), 0)


def _stream(index: int, stream_id: int) -> Stream:
    from torch_npu.npu.streams import Stream  # which needs this module

    _C.check_device(index)
    device_type = torch._C._autograd.DeviceType.PrivateUse1.value
    return Stream(stream_id=stream_id, device_index=index, device_type=device_type)


def is_support_inf_nan() -> bool:
    """As on Ascend 910B and later: overflow gives inf and NaN."""
    return True


def is_bf16_supported(including_emulation: bool = False) -> bool:
    """As on Ascend 910B and later."""
    return True
