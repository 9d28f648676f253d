"""A step's own metrics, whatever the interval is in which TRL's loggers take them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

Metrics = Mapping[str, Sequence[float]]  # TRL's: every value since its loggers took them last
# NaN in these says that there was nothing to measure; in others, of what the update computes, that it isn't finite
_NOTHING = ("reward", "pass_rate", "rollout/", "sampling/", "tasks/", "numerics/", "completions/", "clip_ratio/")
Seen = Mapping[str, tuple[Sequence[float], int]]  # by name: TRL's list, and how long it was


class StepMetrics:
    """The loss and TRL's metrics of the step that is going on."""

    def __init__(self, device: torch.device) -> None:
        self._loss = torch.zeros((), device=device)
        self._seen: Seen = {}

    def add_loss(self, loss: torch.Tensor) -> None:
        """A micro-batch's part of the step's loss."""
        self._loss += loss

    def take_loss(self) -> torch.Tensor:
        """This rank's loss of the step, of shape (1,); starts the next one."""
        loss = self._loss.reshape(1).clone()
        self._loss.zero_()
        return loss

    def gained(self, metrics: Metrics) -> dict[str, float | None]:
        """What each metric gained in this step, see `gained`."""
        return gained(metrics, self._seen)

    def logged(self, metrics: Metrics) -> None:
        """The step has ended, and TRL's loggers have taken what they take; these values are left."""
        self._seen = seen(metrics)


def seen(metrics: Metrics) -> Seen:
    """What each metric has."""
    return {name: (values, len(values)) for name, values in metrics.items()}


def gained(metrics: Metrics, before: Seen) -> dict[str, float | None]:
    """The mean of what each metric gained since `before`, without NaN: None where there was nothing to measure, NaN
    where what was computed isn't finite. What gained nothing, such as the reward in a step that sampled nothing, is
    left out."""
    found: dict[str, float | None] = {}
    for name, values in metrics.items():
        known, length = before.get(name, (values, 0))
        new = values[length:] if known is values else values  # TRL replaces the list of a running total
        valid = [value for value in new if not math.isnan(value)]
        if new:
            nothing = None if name.startswith(_NOTHING) else math.nan
            found[name] = sum(valid) / len(valid) if valid else nothing
    return found
