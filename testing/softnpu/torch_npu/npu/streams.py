"""Streams and events. Work is done when its call returns, so a stream is only a name and an event only a time."""

from __future__ import annotations

from typing import Any

import torch

from torch_npu import _C
from torch_npu.npu.utils import _get_device_index, current_stream


class Stream(torch.Stream):
    """A named sequence of work on a device."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        index = _get_device_index(device, optional=True)
        _C.check_device(index)
        return super().__new__(cls, torch.device("npu", index), priority=priority)

    @property
    def npu_stream(self) -> int:
        """A number that names the stream."""
        return self.stream_id

    def wait_event(self, event: Event) -> None:
        """Let later work on this stream wait for an event."""
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        """Let later work on this stream wait for what another has been given."""
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, a new one if none is given."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether the stream's work is done."""
        return super().query()

    def synchronize(self) -> None:
        """Wait for the stream's work."""
        super().synchronize()


class Event(torch.Event):
    """A point in a stream's work; with `enable_timing` its time can be compared with another's."""

    _timed: bool

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        if interprocess:
            raise NotImplementedError("the software NPU shares no events between processes")
        made = super().__new__(cls, "npu", enable_timing=enable_timing, blocking=blocking)
        made._timed = enable_timing
        return made

    def record(self, stream: torch.Stream | None = None) -> None:
        """Record this event in a stream, the current one by default."""
        super().record(current_stream() if stream is None else stream)

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Let later work on a stream, the current one by default, wait for this event."""
        super().wait(current_stream() if stream is None else stream)

    def query(self) -> bool:
        """Whether the event has happened; true of an event that was never recorded."""
        return super().query()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to another, both recorded with `enable_timing`."""
        if not (self._timed and end_event._timed):
            raise RuntimeError("both events need enable_timing=True to be compared")
        return _C.elapsed_milliseconds(self.event_id, end_event.event_id)

    def synchronize(self) -> None:
        """Wait for the event."""
        super().synchronize()
