"""Which nodes are alive: asked of the head once a second, in a thread, since a head that is gone doesn't answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from ascent.cluster.connection import Cluster
from ascent.cluster.nodes import Node
from ascent.errors import InputError

_EVERY = 1.0
_GONE = 12.0  # seconds without an answer after which the head is given up; Ray ends this process after 60


class HeadGoneError(InputError):
    """The head of the cluster doesn't answer any more; nothing can be placed, nor is anybody told who is lost."""


class Membership:
    """The nodes as the head has them. Raises HeadGoneError from `alive` and `free` when it is gone."""

    def __init__(self, cluster: Cluster) -> None:
        """Asks once at first, so that there is an answer."""
        self._cluster = cluster
        self._closed = threading.Event()
        self._free: Sequence[Node] = ()
        self._alive: frozenset[str] = frozenset()
        self._ask()
        threading.Thread(target=self._keep_asking, name="ascent-membership", daemon=True).start()

    def alive(self) -> frozenset[str]:
        """The ids of the nodes that are alive."""
        self._check()
        return self._alive

    def free(self) -> Sequence[Node]:
        """The nodes that are alive, with what nobody has reserved of them."""
        self._check()
        return self._free

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def _check(self) -> None:
        silent = time.monotonic() - self._answered_at
        if silent > _GONE:
            raise HeadGoneError(
                f"the head of the cluster ({self._cluster.address}) hasn't answered for {silent:.0f} s: it is gone, or "
                "this machine is cut off from it",
                "Start the cluster again (ascent cluster commands prints how).",
            )

    def _ask(self) -> None:
        alive = frozenset(node.id for node in self._cluster.nodes())
        self._free, self._alive = self._cluster.free(), alive
        self._answered_at = time.monotonic()

    def _keep_asking(self) -> None:
        from ray.exceptions import RayError

        while not self._closed.wait(_EVERY):
            if not self._cluster.head_answers():
                continue  # Ray's own call would wait, and end this process in the end
            try:
                self._ask()
            except (RayError, RuntimeError, TimeoutError, ConnectionError):
                continue  # the time of the last answer says it
