"""Who holds what of a sampling server: the whole of it, or one adapter each. Standard library only.

Each training has a hold of its own. One that trains the base model's weights needs the server for itself; trainings
that have an adapter each share it, and the base weights are frozen as long as one of them is there. What an adapter's
holder has delivered is its own: versions of two adapters never meet.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from ascent.rollout.in_vllm.guard_state import RefusedError, ReplicaState

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")


class ReplicaHolds:
    """The holds on one server: `base` is its own state, `adapters` has one for each adapter that was ever taken."""

    def __init__(
        self, most_adapters: int = 0, clock: Callable[[], float] = time.monotonic, base: ReplicaState | None = None
    ) -> None:
        """With `most_adapters` 0 the server serves none."""
        self._most, self._clock = most_adapters, clock
        self.base = base or ReplicaState(clock)
        self.adapters: dict[str, ReplicaState] = {}

    def take(self, holder: Mapping[str, Any], hold: str | None, adapter: str | None) -> str:
        """Take the server, or one `adapter` of it. Raises RefusedError `held`: another has it, an adapter's holder
        stands in the way of the base weights or the other way round, or there is no room for another adapter; `adapter`
        where the server serves none, or the name can't be one."""
        if adapter is None:
            if held := self._living():
                names = ", ".join(sorted(held))
                raise RefusedError("held", f"its base weights are frozen: adapters are held ({names})")
            return self.base.take(holder, hold)
        if not self._most:
            raise RefusedError("adapter", "this server serves no adapters (ascent serve --adapters N)")
        if _NAME.match(adapter) is None:
            raise RefusedError("adapter", f"{adapter[:60]!r} can't be an adapter's name")
        if (current := self.base.holder) is not None:
            raise RefusedError("held", f"its base weights are being trained by {current.get('name')}", holder=current)
        living = self._living()
        if adapter not in living and len(living) >= self._most:
            raise RefusedError("held", f"all {self._most} adapters are held ({', '.join(sorted(living))})")
        for name in set(self.adapters) - set(living) - {adapter}:
            del self.adapters[name]
        state = self.adapters.setdefault(adapter, ReplicaState(self._clock))
        return state.take(holder, hold)

    def of(self, hold: str) -> ReplicaState:
        """The state that `hold` is about: an adapter's, otherwise the server's own (which may refuse it)."""
        return next((state for state in self.adapters.values() if state.is_held_under(hold)), self.base)

    def is_adapters(self, hold: str) -> bool:
        """Whether an adapter is held under `hold`, and not the whole server."""
        return self.of(hold) is not self.base

    def is_held_under(self, hold: str) -> bool:
        """Whether anything is."""
        return self.of(hold).is_held_under(hold)

    def facts(self) -> list[dict[str, Any]]:
        """The adapters that are held, for the status."""
        return [
            {
                "name": name,
                "holder": state.holder,
                "weights": {"state": state.weights, "version": state.version, "revision": state.revision},
            }
            for name, state in sorted(self._living().items())
        ]

    def _living(self) -> dict[str, ReplicaState]:
        return {name: state for name, state in self.adapters.items() if state.holder is not None}
