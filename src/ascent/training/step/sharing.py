"""A device shared over time by the trainer and an engine beside it: each gives back what the other's turn needs.

While completions are sampled the trainer's optimizer state, and gradients if there are any, lie in host memory; while
it trains, an engine that can sleep holds neither weights nor cache. Values are moved, never changed, so a training is
the same with it and without.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ascent import devices
from ascent.errors import InputError

OFFLOADS = ("none", "optimizer", "all")


class Sharing:
    """What happens around a generation. `tell` takes what a move took, in seconds and bytes."""

    def __init__(self, trainer: Any, offload: str, tell: Callable[[str, float], None]) -> None:
        """`offload`: "none", "optimizer", or "all", which is gradients too. Raises InputError for another word."""
        if offload not in OFFLOADS:
            raise InputError(f"offload={offload!r}: expected one of {', '.join(OFFLOADS)}")
        on_accelerator = devices.kind() != "cpu"  # on CPU the host's memory is the device's
        self._trainer, self._offload, self._tell = trainer, offload if on_accelerator else "none", tell

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Inside, completions are sampled."""
        began = time.perf_counter()
        moved = self._away() if self._offload != "none" else []
        away = time.perf_counter() - began
        try:
            yield
        finally:
            began = time.perf_counter()
            rest = getattr(self._trainer.engine, "rest", None)
            if rest is not None:
                rest()
            for back in moved:
                back()
            if moved:
                devices.synchronize()
                self._tell("memory/offload_seconds", away + time.perf_counter() - began)

    def _away(self) -> list[Callable[[], None]]:
        """Move what isn't needed to the host; what brings each piece back."""
        back: list[Callable[[], None]] = []
        bytes_ = 0
        optimizer = self._trainer.optimizer
        for state in (getattr(optimizer, "optimizer", optimizer).state if optimizer is not None else {}).values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.device.type != "cpu" and value.dim():
                    bytes_ += _local(value).untyped_storage().nbytes()
                    back.append(_move(_in_dict(state, name), value))
        if self._offload == "all":
            for parameter in self._trainer.model.parameters():
                if parameter.grad is not None and parameter.grad.device.type != "cpu":
                    bytes_ += _local(parameter.grad).untyped_storage().nbytes()
                    back.append(_move(_as_gradient(parameter), parameter.grad))
        devices.synchronize()
        devices.empty_cache()
        if back:
            self._tell("memory/offload_bytes", float(bytes_))
        return back


Put = Callable[[Any], None]


def _move(put: Put, value: torch.Tensor) -> Callable[[], None]:
    """Move a tensor's own bytes to the host; the function brings them back to where they were."""
    local = _local(value)
    device, host = local.device, local.to("cpu")
    if local is value:
        put(host)
        return lambda: put(host.to(device))
    value._local_tensor = host  # type: ignore[attr-defined]  # of a DTensor: FSDP's piece

    def back() -> None:
        value._local_tensor = host.to(device)  # type: ignore[attr-defined]

    return back


def _local(value: torch.Tensor) -> torch.Tensor:
    """This device's piece of a sharded tensor, or the tensor itself."""
    found: torch.Tensor = getattr(value, "_local_tensor", value)
    return found


def _in_dict(state: dict[str, Any], name: str) -> Put:
    def put(value: Any) -> None:
        state[name] = value

    return put


def _as_gradient(parameter: torch.nn.Parameter) -> Put:
    """A gradient has to be where its parameter is: on the host it is kept beside, and there is none meanwhile."""

    def put(value: Any) -> None:
        parameter.grad = value if value.device == parameter.device else None

    return put
