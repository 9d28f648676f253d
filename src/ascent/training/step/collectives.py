"""How long this process's collective calls take, by what they move.

Two ways, because the gradients of DDP never pass Python: its reducer times them itself. All other collectives are
functions of `torch.distributed`, which are replaced by timed ones while somebody listens: accelerate's gathers, this
project's, and FSDP's. What is timed is a call from its beginning to its end, so it includes waiting for a rank that
comes later. Functional collectives (those of `DTensor.full_tensor`) aren't seen.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ascent import devices

Kind = Literal["gradients", "gathers"]
_TIMED: dict[str, Kind] = {  # as far as this release of torch has them
    "reduce_scatter_tensor": "gradients",  # FSDP's, up to torch 2.12
    "reduce_scatter_single": "gradients",  # and from 2.13 on
    "all_gather_into_tensor": "gathers",
    "all_gather_single": "gathers",
    "all_gather": "gathers",
    "all_gather_object": "gathers",
    "gather_object": "gathers",
    "all_reduce": "gathers",
    "broadcast": "gathers",
    "broadcast_object_list": "gathers",
    "barrier": "gathers",
}
Times = tuple[float, float]


class Collectives:
    """Times of the calls of `torch.distributed` of this process, on the device where it has an accelerator."""

    def __init__(self) -> None:
        self._host: dict[Kind, list[Times]] = defaultdict(list)
        self._device: dict[Kind, list[tuple[torch.Event, torch.Event]]] = defaultdict(list)
        self._inside = threading.local()
        self._replaced: dict[str, Callable[..., Any]] = {}

    def listen(self) -> None:
        """From now on. Without effect where it does already."""
        if self._replaced:
            return
        on_device = devices.kind() != "cpu" and _has_timed_events()
        for name, kind in _TIMED.items():
            if not hasattr(dist, name):
                continue
            usual = self._replaced[name] = getattr(dist, name)
            setattr(dist, name, self._timed(usual, kind, on_device=on_device))

    def stop(self) -> None:
        """Give torch its functions back."""
        for name, usual in self._replaced.items():
            setattr(dist, name, usual)
        self._replaced.clear()

    def take(self) -> dict[Kind, float]:
        """Seconds since they were taken last, during which at least one call of a kind was under way. The device has
        done all of it."""
        found: dict[Kind, float] = {}
        for kind in ("gradients", "gathers"):
            on_device = sum(start.elapsed_time(end) for start, end in self._device.pop(kind, [])) / 1000.0
            found[kind] = seconds_covered(self._host.pop(kind, [])) + on_device
        return found

    def _timed(self, usual: Callable[..., Any], kind: Kind, *, on_device: bool) -> Callable[..., Any]:
        @functools.wraps(usual)
        def call(*args: Any, **keywords: Any) -> Any:
            if getattr(self._inside, "depth", 0):  # one that is made of others
                return usual(*args, **keywords)
            self._inside.depth = 1
            try:
                if on_device:
                    return self._on_device(usual, kind, args, keywords)
                began = time.perf_counter()
                result = usual(*args, **keywords)
                if isinstance(result, dist.Work):
                    result.get_future().then(lambda _: self._host[kind].append((began, time.perf_counter())))
                else:
                    self._host[kind].append((began, time.perf_counter()))
                return result
            finally:
                self._inside.depth = 0

        return call

    def _on_device(self, usual: Callable[..., Any], kind: Kind, args: Any, keywords: Any) -> Any:
        """The device's stream waits for the call, so that events around it have its time."""
        start, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
        start.record()
        result = usual(*args, **keywords)
        if not isinstance(result, dist.Work):  # one that the stream doesn't wait for yet has no end here
            end.record()
            self._device[kind].append((start, end))
        return result


@dataclass(frozen=True, slots=True)
class GradientTimes:
    """Of one backward pass of DDP, in seconds: from the first bucket's sending to the last one's arrival, and what of
    it the pass's own computing did not hide."""

    whole: float
    exposed: float


class DdpTimer:
    """Reads what DDP's reducer has timed. Its interface is torch's prototype; where a release has it no more, a test
    says so."""

    def __init__(self) -> None:
        self._seen: tuple[int, int] | None = None  # the wrapper and its backward pass

    def take(self, model: Any) -> GradientTimes | None:
        """The newest synchronised backward pass of a model that is wrapped in DDP; None where there was no new one.
        DDP times each one from the first call on."""
        if not isinstance(model, DistributedDataParallel) or model.logger is None:
            return None
        if self._seen is None or self._seen[0] != id(model):
            model._set_ddp_runtime_logging_sample_rate(1)
        model.logger.set_runtime_stats_and_log()
        found = model._get_ddp_logging_data()
        newest, seen = (id(model), int(found.get("iteration", 0))), self._seen
        self._seen = newest
        if newest == seen or newest[1] < 1:
            return None
        whole = found.get("backward_comm_time", 0) / 1e9
        return GradientTimes(whole, max(0.0, whole - found.get("backward_compute_comm_overlap_time", 0) / 1e9))


def seconds_covered(times: Iterable[Times]) -> float:
    """How long at least one of some intervals lasts."""
    total, until = 0.0, float("-inf")
    for began, ended in sorted(times):
        total += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return total


def _has_timed_events() -> bool:
    """Whether this device times events; where it doesn't, calls are timed on the host."""
    try:
        start, end = torch.Event(enable_timing=True), torch.Event(enable_timing=True)
        start.record()
        end.record()
        devices.synchronize()
        start.elapsed_time(end)
    except (RuntimeError, NotImplementedError):
        return False
    return True
