"""The servers of a service as a training's dispatcher sees them, while the service grows and shrinks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ascent.rollout.engines.served.jobs import Job
from ascent.rollout.engines.served.replica import Replica


@dataclass(eq=False, slots=True)
class Member:
    """A server, as the dispatcher sees it."""

    replica: Replica
    incarnation: str = ""
    heard_at: float = 0.0  # when it last answered; 0: it is not reachable
    held: bool = False
    looked: bool = False  # whether it was looked at at all
    leaving: bool = False  # the service drains it, or has it no more
    taken_at: float | None = None  # since when another has it
    misses: int = 0
    answers: int = 0  # to sampling requests, whatever they said: signs of life
    flights: dict[asyncio.Task[float | None], Job] = field(default_factory=dict)
    wake: asyncio.Event = field(default_factory=asyncio.Event)  # look at once

    @property
    def up(self) -> bool:
        """Whether it answers, is ours, and stays."""
        return self.heard_at > 0 and self.held and not self.leaving

    def has(self, version: int | None) -> bool:
        """Whether it can sample with the weights of `version`."""
        status = self.replica.status
        return self.up and status is not None and status.weights == "ready" and status.version == version

    @property
    def outstanding(self) -> int:
        """Tokens that it may still have to read and sample."""
        return sum(job.tokens for job in self.flights.values())


def followed(members: Sequence[Member], urls: Mapping[str, bool], make: Callable[[str], Replica]) -> list[Member]:
    """The members of a service whose servers are now at `urls`, of which those that are drained are False.

    A server that is drained is given nothing new, and is left out once it has finished what it samples; one that is no
    longer there, or elsewhere, is left out at once. A new one comes without weights: it samples nothing before the
    holder's next update has reached it.
    """
    for member in members:
        member.leaving = not urls.get(member.replica.url, False)
    known = {member.replica.url for member in members}
    stay = [member for member in members if member.replica.url in urls and (not member.leaving or member.flights)]
    return [*stay, *(Member(make(url)) for url, serves in urls.items() if serves and url not in known)]
