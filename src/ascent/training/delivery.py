"""New weights into the engine, by all processes together, and again where that can help."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import TYPE_CHECKING

from ascent.rollout.engine import (
    Canary,
    EngineLostError,
    RolloutEngine,
    WeightMismatchError,
    WeightsInterruptedError,
    WeightSyncError,
)

if TYPE_CHECKING:
    from torch import Tensor


class Outcome(IntEnum):
    """What became of one delivery; the worst of all processes counts."""

    ARRIVED = 0
    INTERRUPTED = 1
    MISMATCH = 2
    FAILED = 3


def deliver(
    engine: RolloutEngine,
    named_tensors: Callable[[], Iterable[tuple[str, Tensor]]],
    version: int,
    canary: Canary | None,
    *,
    worst: Callable[[int], int],
    tell: Callable[[str], None],
) -> None:
    """Send the weights; once more after a mismatch, and again whenever a server died while it took them.

    Collective: `named_tensors()` walks over the weights, `worst` is the largest of a number over all processes. How
    often servers may die is bounded by the service, whose end is an EngineLostError. Raises what ended it.
    """
    mismatches = 0
    while True:
        failure: WeightSyncError | EngineLostError | None = None
        try:
            engine.update_weights(named_tensors(), version, canary)
        except (WeightSyncError, EngineLostError) as error:
            failure = error
        outcome = worst(_outcome(failure))
        if outcome == Outcome.ARRIVED:
            return
        mismatches += outcome == Outcome.MISMATCH
        if outcome == Outcome.FAILED or mismatches > 1:
            raise failure or WeightSyncError("another process could not bring its weights to the servers")
        if failure is not None:
            tell(f"note: weights {version}: {failure}; sending them again")


def _outcome(failure: Exception | None) -> Outcome:
    if failure is None:
        return Outcome.ARRIVED
    if isinstance(failure, WeightsInterruptedError):
        return Outcome.INTERRUPTED
    return Outcome.MISMATCH if isinstance(failure, WeightMismatchError) else Outcome.FAILED
