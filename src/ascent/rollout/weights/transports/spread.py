"""Which host gets a chunk from whom, where hosts relay what they have: each source gives a chunk to one host at a time.

So what one host has, two have a moment later, then four: a chunk is everywhere after about log2(hosts + 1) times what
one transfer takes, where the trainer alone would take as many times as there are hosts. The arrangement grows as
requests come in; it is not planned, and a host that is slow or gone holds up only those that it is giving a chunk to.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field

TRAINER = ""  # as a source
Client = tuple[str, int]


@dataclass(slots=True)
class Spread:
    """The account of one delivery. Not safe for threads; times are `time.monotonic`'s."""

    given_up_after: float  # seconds that a relay has for one chunk, until it counts as free again
    _holders: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    _giving: dict[str, tuple[Client, float]] = field(default_factory=dict)  # by source: to whom, since when
    _relay_of: dict[Client, str] = field(default_factory=dict)
    _bad: set[str] = field(default_factory=set)

    def source(self, number: int, client: Client) -> str | None:
        """Who gives a chunk to `client`: a relay's address, TRAINER, or None where nobody is free now."""
        self.ended(client)  # it asks for another
        own = self._relay_of.get(client)
        for source in (*self._holders[number], TRAINER):  # the trainer last: the next chunk waits for it
            if source not in self._bad and source != own and self._is_free(source):
                self._giving[source] = client, time.monotonic()
                return source
        return None

    def ended(self, client: Client) -> None:
        """What the client was getting has come to an end, well or not."""
        self._giving = {source: each for source, each in self._giving.items() if each[0] != client}

    def holds(self, number: int, client: Client, relay: str) -> None:
        """A client has a chunk and gives it out."""
        self.ended(client)
        self._relay_of[client] = relay
        if relay not in self._holders[number]:
            self._holders[number].append(relay)

    def failed(self, client: Client, relays: tuple[str, ...]) -> None:
        """These did not give the client what they should have: they are named to nobody any more."""
        self.ended(client)
        self._bad.update(relays)

    def forget(self, number: int) -> None:
        """A chunk that isn't given out any more."""
        self._holders.pop(number, None)

    def _is_free(self, source: str) -> bool:
        busy = self._giving.get(source)
        return busy is None or time.monotonic() - busy[1] > self.given_up_after
