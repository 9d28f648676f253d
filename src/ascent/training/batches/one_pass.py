"""What surrounds one forward and backward pass of an optimizer step that is made of several, of our own making."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

Metrics = dict[str, list[float]]


@contextlib.contextmanager
def synchronised(accelerator: Any, model: Any, last: bool) -> Iterator[None]:
    """Gradients are reduced over ranks in the last pass only, which is also the only one that TRL's loss may take for
    the end of the optimizer step (it moves the entropy controller there)."""
    state = accelerator.gradient_state
    state._set_sync_gradients(last)
    each = state.plugin_kwargs.get("sync_each_batch", False)
    with contextlib.nullcontext() if last or each else accelerator.no_sync(model):
        yield


@contextlib.contextmanager
def ragged(accelerator: Any) -> Iterator[None]:
    """TRL's loss gathers one value a row for its metrics, and leaves out those that aren't a number: while inside, each
    rank may have other rows, and what one has less than another isn't a number."""
    if accelerator.num_processes == 1:
        yield
        return
    usual = accelerator.gather

    def gather(tensor: Tensor) -> Any:
        if tensor.ndim and tensor.is_floating_point():
            tensor = accelerator.pad_across_processes(tensor, dim=0, pad_index=math.nan)
        return usual(tensor)

    accelerator.gather = gather
    try:
        yield
    finally:
        del accelerator.gather  # the instance's; the class has its own


@contextlib.contextmanager
def apart(metrics: Metrics, written: list[Metrics]) -> Iterator[None]:
    """What TRL's loss writes into `metrics` inside is moved to the end of `written`, or is lost where it fails."""
    before = {name: len(values) for name, values in metrics.items()}
    gained: Metrics = {}
    try:
        yield
    finally:
        for name, values in metrics.items():
            start = before.get(name, 0)
            if len(values) > start:
                gained[name] = values[start:]
                del values[start:]
    written.append(gained)
