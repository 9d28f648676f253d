"""Why no server got the new weights: one error for what happened at each of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ascent import devices
from ascent.rollout.engine import (
    EngineError,
    ServerMemoryError,
    ServersRestartingError,
    WeightSyncError,
    WeightTransferError,
)
from ascent.rollout.weights.control import ServerCallError


def why_none_got_them(failed: Mapping[str, Exception], alive: Collection[str]) -> EngineError:
    """The error for a delivery that reached no server. `failed`: what went wrong, by the server's url; `alive`: the
    urls of those that still answer, and are the same process as before.

    What a server says counts more than its silence, and a refusal more than a failure: memory that ran out, then what
    can't succeed later either, then what may (a failing call to a living server), then the death of all.
    """
    text = "no server got the weights: " + "; ".join(f"{url}: {error}" for url, error in failed.items())
    if any(devices.says_out_of_memory(str(error)) for error in failed.values()):
        return ServerMemoryError(f"a sampling server ran out of memory while it took new weights: {text}")
    living = [error for url, error in failed.items() if url in alive]
    if not living:
        return ServersRestartingError(text)
    if all(_may_succeed_later(error) for error in living):
        return WeightTransferError(text)
    return WeightSyncError(text)


def _may_succeed_later(error: Exception) -> bool:
    if isinstance(error, ServerCallError):  # no whole answer, or a failure inside the server: not a refusal
        return error.status is None or error.status >= 500 or error.code == "hold"
    return isinstance(error, (WeightTransferError, ServersRestartingError))
