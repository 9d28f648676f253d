"""Which transport fits where trainer and servers stand, and why."""

from __future__ import annotations

from dataclasses import dataclass

from ascent.errors import InputError
from ascent.rollout.weights.transports.base import Place, Reach, Transport
from ascent.tables import TRANSPORTS, load


@dataclass(frozen=True, slots=True)
class Choice:
    """A transport's name in the table, and the reason for the log."""

    name: str
    reason: str


def choose(place: Place) -> Choice:
    """The first transport of the table that fits `place`. Raises InputError where none reaches the servers."""
    passed_over: list[str] = []
    for name in TRANSPORTS:
        reach: Reach = _class(name).reach
        why_not = reach.misfit(place)
        if why_not is None:
            return Choice(name, "; ".join([reach.how, *passed_over]))
        if place.device_kind in reach.device_kinds:
            passed_over.append(f"not {name}: {why_not}")
    where = "this machine" if place.same_host else "another machine"
    raise InputError(
        f"weights can't reach servers on {where} ({place.device_kind}, vLLM {place.vllm_version}): "
        + "; ".join(passed_over),
        "Run trainer and servers on one machine, or give the servers devices of their own.",
    )


def check_fits(name: str, place: Place) -> None:
    """Raise InputError where a transport that was asked for by its name can't serve `place`."""
    why_not = _class(name).reach.misfit(place)
    if why_not is not None:
        raise InputError(f"weights can't travel by {name} here: {why_not}", "Leave the choice to transport=auto.")


def backend(name: str) -> str:
    """What vLLM calls the receiving engine: `--weight-transfer-config '{"backend": ...}'`."""
    return _class(name).backend


def transport(
    name: str,
    dtype: str,
    device: str,
    *,
    address: str | None = None,
    chunk_bytes: int | None = None,
    timeout: float = 300.0,
) -> Transport:
    """The trainer's side of a transport, by its name in the table; the arguments are those of `Transport`.

    Raises InputError for an unknown name, WeightSyncError for a transport that this training can't use.
    """
    return _class(name)(dtype, device, address=address, chunk_bytes=chunk_bytes, timeout=timeout)


def _class(name: str) -> type[Transport]:
    found: type[Transport] = load(TRANSPORTS, name, "transport")
    return found
