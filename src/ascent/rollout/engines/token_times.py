"""When tokens came, as vLLM itself tells it: until a completion's first token, and between one and the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class TokenTimes:
    """Seconds, one entry a completion (`first`) and one a step of each completion after that (`between`).

    `first` counts from the completion's submission, so the time that it waits for its turn is in it. With guessed
    tokens (`rollout/speculation.py`) a step may give several, and `between` is the time of a step. One entry a token is
    more than a training wants to keep: it is for measurements.
    """

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)

    def add(self, first: Sequence[float], between: Sequence[float]) -> None:
        """What a step of the engine brought."""
        self.first += first
        self.between += between

    def take(self) -> tuple[list[float], list[float]]:
        """(first, between) so far; starts anew."""
        taken = self.first, self.between
        self.first, self.between = [], []
        return taken


@dataclass(frozen=True, slots=True)
class Latency:
    """Of many times, in seconds: the middle one, and that which 95 of 100 don't exceed."""

    median: float
    p95: float


def latency(seconds: Sequence[float]) -> Latency | None:
    """None for no times at all. Quantiles are of nearest rank."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    return Latency(ordered[(len(ordered) - 1) // 2], ordered[math.ceil(0.95 * len(ordered)) - 1])
