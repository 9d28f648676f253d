"""New weights into the engine, by all processes together; once more where what arrived is not what was sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ascent.rollout.engine import Canary, EngineLostError, RolloutEngine, WeightMismatchError, WeightSyncError

if TYPE_CHECKING:
    from torch import Tensor

_ARRIVED, _MISMATCH, _FAILED = 0, 1, 2


def deliver(
    engine: RolloutEngine,
    named_tensors: Callable[[], Iterable[tuple[str, Tensor]]],
    version: int,
    canary: Canary | None,
    *,
    worst: Callable[[int], int],
    tell: Callable[[str], None],
) -> None:
    """Send the weights, and once more after a mismatch.

    Collective: `named_tensors()` walks over the weights, `worst` is the largest of a number over all processes, so that
    all end alike. Raises what the second attempt raised.
    """
    for attempt in (1, 2):
        failure: WeightSyncError | EngineLostError | None = None
        try:
            engine.update_weights(named_tensors(), version, canary)
        except (WeightSyncError, EngineLostError) as error:
            failure = error
        outcome = worst(_outcome(failure))
        if outcome == _ARRIVED:
            return
        if outcome == _FAILED or attempt == 2:
            raise failure or WeightSyncError("another process could not bring its weights to the servers")
        if failure is not None:
            tell(f"note: {failure}; sending them again")


def _outcome(failure: Exception | None) -> int:
    if failure is None:
        return _ARRIVED
    return _MISMATCH if isinstance(failure, WeightMismatchError) else _FAILED
