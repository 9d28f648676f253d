"""Who holds a sampling server and which weights it has: the rules, without HTTP. Standard library only.

It lives inside the server's process, so a restarted server starts with no holder and no weights. A hold is a lease: who
stops renewing it loses it, and the server is free again. Weights belong to the hold under which they came: another
holder finds `none`, however the last one numbered its versions; who takes the server again finds them as they were.

A training A, then a training B, with one server:

    what happens                        weights        then sampling
    the server starts                   none           nobody holds it: refused (`hold`)
    A takes it, begins version 1        updating, 1    refused (`weights`): they may be torn
    A commits version 1                 ready, 1       A asks for version 1: yes; for version 2: refused (`weights`)
    A begins version 2, and is killed   updating, 2    refused: half of them may be version 1's
    15 s later A's lease ends; B takes  updating, 2    refused: whose weights these are doesn't matter, they may be torn
    B begins and commits its version 1  ready, 1       B asks for version 1: yes, and these are B's own
    B releases it, A takes it again     none           A asks for its version 1: refused, although the number fits
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

LEASE_SECONDS = 15.0
WeightState = Literal["none", "updating", "ready"]


class RefusedError(Exception):
    """What was asked is not allowed now. `code` is for programs: `held`, `hold`, `weights`, `updating`, `running`."""

    def __init__(self, code: str, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.code = code
        self.facts = facts


@dataclass(frozen=True, slots=True)
class _Lease:
    hold: str
    holder: Mapping[str, Any]
    until: float


class ReplicaState:
    """The state of one server. Not thread-safe: everything happens in the server's event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lease: _Lease | None = None
        self.incarnation = secrets.token_hex(8)
        self.weights: WeightState = "none"
        self.version: int | None = None
        self.revision = 0  # counts changes of the weights' state
        self._owner = ""  # the hold under which the weights came
        self._before: tuple[WeightState, int | None] = ("none", None)

    @property
    def holder(self) -> Mapping[str, Any] | None:
        """Who holds the server now."""
        if self._lease is not None and self._clock() >= self._lease.until:
            self._lease = None
        return None if self._lease is None else self._lease.holder

    def take(self, holder: Mapping[str, Any], hold: str | None = None) -> str:
        """Take the server, or take it again with the same `hold`. Raises RefusedError `held` when another has it."""
        current = self.holder
        if self._lease is not None and not _same(hold or "", self._lease.hold):
            raise RefusedError("held", f"held by {_named(current or {})}", holder=dict(current or {}))
        hold = hold or secrets.token_hex(16)
        if hold != self._owner and self.weights == "ready":  # another's weights, whose versions mean nothing here
            self._set("none", None)
        self._owner = hold
        self._lease = _Lease(hold, dict(holder), self._clock() + LEASE_SECONDS)
        return hold

    def renew(self, hold: str) -> None:
        """Hold the server for another LEASE_SECONDS."""
        self.check_hold(hold)
        assert self._lease is not None
        self._lease = _Lease(hold, self._lease.holder, self._clock() + LEASE_SECONDS)

    def release(self, hold: str) -> None:
        """Give the server back."""
        self.check_hold(hold)
        self._lease = None

    def is_held_under(self, hold: str) -> bool:
        """Whether `hold` is the one under which the server is held."""
        return self.holder is not None and self._lease is not None and _same(hold, self._lease.hold)

    def check_hold(self, hold: str) -> None:
        """Raise RefusedError `hold` unless `hold` is the one under which the server is held."""
        holder = self.holder
        if not self.is_held_under(hold):
            why = "nobody holds this server" if holder is None else f"this server is held by {_named(holder)}"
            raise RefusedError("hold", f"{why}; a hold is needed, and this is not it")

    def begin(self, hold: str, version: int) -> None:
        """New weights are about to come: nothing may be sampled until `commit`."""
        self.check_hold(hold)
        self._before = (self.weights, self.version)
        self._set("updating", version)

    def abandon(self, hold: str) -> None:
        """Undo a `begin` after which nothing was sent."""
        self.check_hold(hold)
        self._set(*self._before)

    def commit(self, hold: str, version: int) -> None:
        """The weights of `version` are whole."""
        self.check_hold(hold)
        if self.weights != "updating" or self.version != version:
            raise RefusedError("weights", f"version {version} was not begun: {self._in_words()}", **self._facts())
        self._set("ready", version)

    def check_version(self, hold: str, version: int) -> None:
        """Raise RefusedError unless the server has exactly the holder's weights of `version`."""
        self.check_hold(hold)
        if self.weights != "ready" or self.version != version:
            raise RefusedError("weights", f"weights of version {version} wanted: {self._in_words()}", **self._facts())

    def check_updating(self, hold: str) -> None:
        """Raise RefusedError unless the holder is giving new weights just now."""
        self.check_hold(hold)
        if self.weights != "updating":
            raise RefusedError("weights", f"no weights are being given: {self._in_words()}", **self._facts())

    def check_whole(self) -> None:
        """Raise RefusedError `updating` while weights may be torn."""
        if self.weights == "updating":
            raise RefusedError("updating", "new weights are on their way")

    def _set(self, weights: WeightState, version: int | None) -> None:
        self.weights, self.version = weights, version
        self.revision += 1

    def _in_words(self) -> str:
        return {
            "none": "this server has none of the holder's weights",
            "updating": f"this server is being given version {self.version}",
            "ready": f"this server has version {self.version}",
        }[self.weights]

    def _facts(self) -> dict[str, Any]:
        return {"weights": {"state": self.weights, "version": self.version}}


def _same(given: str, right: str) -> bool:
    return secrets.compare_digest(given.encode(), right.encode())


def _named(holder: Mapping[str, Any]) -> str:
    return f"{holder.get('name')} (process {holder.get('pid')} on {holder.get('host')}, since {holder.get('since')})"
