"""The batches of an epoch, known a little before they are trained on, so that the next generation can be asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any


class Lookahead:
    """An epoch's batches with `reach` of them fetched beyond those that were taken.

    TRL's dataloader yields a whole generation's rows for each micro-batch, so the batch that stands one generation's
    micro-batches after the one that began a generation begins the next.
    """

    def __init__(self, batches: Iterator[Any], reach: int) -> None:
        self.batches = batches
        self._reach = reach
        self._known: deque[Any] = deque()
        self._taken: list[Any] = []

    def take(self, count: int) -> list[Any]:
        """The next `count` batches; fewer at the end of the epoch."""
        while len(self._known) < count + self._reach:
            try:
                self._known.append(next(self.batches))
            except StopIteration:
                break
        self._taken = [self._known.popleft() for _ in range(min(count, len(self._known)))]
        return self._taken

    def after(self, batch: Any, distance: int) -> Any | None:
        """The batch `distance` (at most `reach`) after `batch`, which was taken last; None beyond the epoch's end."""
        place = next(place for place, taken in enumerate(self._taken) if taken is batch)
        following = [*self._taken, *self._known][place + distance :]
        return following[0] if following else None
