"""From a layout to agents that stand: waits for room, and says all the while what is missing where."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from ascent.cluster.held import Held, give_back
from ascent.cluster.logs import Shown
from ascent.cluster.membership import Membership
from ascent.cluster.nodes import Node
from ascent.cluster.places import Layout, ReplicaPlace, TrainingPlace
from ascent.cluster.refusal import DoesNotFitError
from ascent.config.sections import ClusterSection
from ascent.errors import InputError

_TELL = 30.0  # seconds between two words about what is missing
_LOOK = 0.5


class Placement:
    """Finds room in a cluster for a run. `without`: ids of the nodes that were lost."""

    def __init__(self, members: Membership, section: ClusterSection, pause: Callable[[float], None]) -> None:
        """`pause` waits so many seconds; whatever else must go on meanwhile, it does. It may raise, to end the wait."""
        self._members, self._section, self._pause = members, section, pause
        self.without: set[str] = set()

    def room(self) -> list[Node]:
        """The nodes with room, as far as they aren't lost."""
        return [node for node in self._members.free() if node.id not in self.without]

    def hold(
        self,
        lay_out: Callable[[Sequence[Node]], Layout],
        places: Callable[[Layout], Sequence[TrainingPlace | ReplicaPlace]],
    ) -> tuple[Layout, list[Held]]:
        """Lay out on the nodes that have room and hold the places there, all or none; waits until that can be.

        Raises DoesNotFitError when it couldn't within `cluster.wait_minutes`.
        """
        until = time.monotonic() + 60 * self._section.wait_minutes
        told_at = -_TELL
        while True:
            try:
                layout = lay_out(self.room())
                return layout, self._hold(layout, places(layout))
            except _NotComeError as error:
                missing, mend = str(error), "Look at that node: ray status, and its Ray's logs."
            except DoesNotFitError as error:
                missing, mend = error.message, error.mend
            now = time.monotonic()
            if now > until:
                waited = f"no room on the cluster after {self._section.wait_minutes:g} min (cluster.wait_minutes)"
                raise InputError(f"{waited}: {missing}", mend)
            if now - told_at >= _TELL:
                told_at = now
                left = max(1, round((until - now) / 60))
                print(f"waiting for room, {left} min more at most: {missing}", file=sys.stderr, flush=True)
            self._pause(1.0)

    def _hold(self, layout: Layout, places: Sequence[TrainingPlace | ReplicaPlace]) -> list[Held]:
        held = [Held(place, layout.kind, self._section.interface) for place in places]
        shown = Shown()
        try:
            while not all(one.came for one in held):
                self._pause(_LOOK)
                alive = self._members.alive()
                for one in held:
                    one.look(shown, alive)
                    if one.lost is not None:
                        self.without.add(one.node.id)
                        raise _NotComeError(f"node {one.node}: {one.lost}")
                    if one.late():
                        raise _NotComeError(
                            f"node {one.node}: no agent has come there; its Ray isn't well, or somebody else has taken "
                            "its devices meanwhile"
                        )
        except BaseException:
            give_back(held)
            raise
        return held


class _NotComeError(RuntimeError):
    """An agent didn't come; the message says where."""
