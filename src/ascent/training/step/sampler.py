"""Completions for the trainer: current weights into the engine, groups out, one generation ahead where that is wanted.

All of it is called by the trainer's thread. A generation that is sampled ahead has a thread that takes its completions;
the engine is not touched meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ascent.rollout.engine import Canary, EngineLostError, RolloutEngine
from ascent.training.step.clock import StepClock
from ascent.training.step.delivery import deliver
from ascent.training.step.flight import Flight
from ascent.training.step.groups import LocalGroup
from ascent.types import Completion

if TYPE_CHECKING:
    from torch import Tensor

_NEEDS_WEIGHTS, _LOST = 1, 2
Arrival = Callable[[int, str], None]  # a completion's place in the local batch, and its text


@dataclass(frozen=True, slots=True)
class Policy:
    """What the sampler asks of the trainer. `version` is the number of optimizer steps done, `named_tensors` walks over
    the weights (collective), `canary` measures them (collective; None where nothing travels), `worst` is the largest of
    a number over all processes, `decode` gives a completion's text in any thread, `sampled(done, total)` is told."""

    version: Callable[[], int]
    named_tensors: Callable[[], Iterable[tuple[str, Tensor]]]
    canary: Callable[[], Canary] | None
    worst: Callable[[int], int]
    decode: Callable[[Sequence[int]], str]
    sampled: Callable[[int, int], None]


class Sampler:
    """See the module."""

    def __init__(self, engine: RolloutEngine, policy: Policy, clock: StepClock) -> None:
        self._dropped = 0
        self._engine, self._policy, self._clock = engine, policy, clock
        self._loaded: int | None = None
        self._ahead: Flight | None = None
        self._kept: list[Completion] = []

    def sync(self) -> None:
        """Move the current weights into the engine, unless it has them. Collective over all processes."""
        if self._policy.version() != self._loaded:
            self.land_ahead()  # it ends with the weights that it began with
            self._deliver()

    def sample(self, groups: Sequence[LocalGroup], finished: Arrival) -> list[Completion]:
        """Sample all groups, or take them from what was sampled ahead. In order of their places.

        `finished(place, text)` is called as each completion ends. Collective where the engine is served, so that all
        processes can bring weights to a server that was restarted.
        """
        flight, self._ahead = self._ahead, None
        if flight is not None:
            completions = self._land(flight)
            if flight.groups == list(groups):
                return completions
            self._ahead = flight  # what is asked for comes in between, such as an evaluation
        if self._kept and _asked_for(groups, self._kept):
            kept, self._kept = self._kept, []
            return self._land(self._flight(groups, finished, kept))
        return self._land(self._launch(groups, finished))

    def sample_ahead(self, groups: Sequence[LocalGroup], finished: Arrival) -> None:
        """Begin to sample what `sample` will ask for next, with the current weights."""
        self.drop_ahead()
        self._ahead = self._launch(groups, finished)
        self._ahead.start()

    def land_ahead(self) -> list[Completion]:
        """Wait for what is sampled ahead, which stays there to be asked for; none when there is nothing."""
        return [] if self._ahead is None else self._land(self._ahead)

    def keep(self, completions: Sequence[Completion]) -> None:
        """Completions that a checkpoint kept: `sample` returns them when they are asked for."""
        self._kept = list(completions)

    def drop_ahead(self) -> None:
        """Let go of what was sampled ahead; it is counted."""
        self._dropped += len(self.land_ahead()) + len(self._kept)
        self._ahead, self._kept = None, []

    def forget_ahead(self) -> None:
        """Let go of what was sampled ahead without waiting for it: its servers are gone."""
        flight, self._ahead = self._ahead, None
        if flight is not None:
            flight.join()

    def take_dropped(self) -> int:
        """How many completions were sampled ahead and then not asked for, since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def _launch(self, groups: Sequence[LocalGroup], finished: Arrival) -> Flight:
        self.sync()
        return self._flight(groups, finished)

    def _flight(self, groups: Sequence[LocalGroup], finished: Arrival, there: Sequence[Completion] = ()) -> Flight:
        total = sum(group.request.n for group in groups)
        arrived = 0

        def arrive(place: int, completion: Completion) -> None:
            nonlocal arrived
            arrived += 1
            finished(place, self._policy.decode(completion.token_ids))
            self._policy.sampled(arrived, total)

        return Flight(self._engine, groups, arrive, there)

    def _land(self, flight: Flight) -> list[Completion]:
        """Wait for a flight, bringing weights to servers that lost theirs. All processes end alike."""
        with self._clock.phase("generate"):
            flight.join()
            while state := self._policy.worst(_advance(flight)):
                if state == _LOST:
                    raise flight.lost or EngineLostError("another process lost its sampling servers")
                self._deliver()
        return flight.completions()

    def _deliver(self) -> None:
        version = self._policy.version()
        with self._clock.phase("sync"):
            deliver(
                self._engine,
                self._policy.named_tensors,
                version,
                self._policy.canary() if self._policy.canary is not None else None,
                worst=self._policy.worst,
                tell=lambda text: print(text, file=sys.stderr, flush=True),
            )
        self._loaded = version


def _advance(flight: Flight) -> int:
    """Take what comes; how that ended."""
    try:
        flight.run()
    except EngineLostError as error:
        flight.lost = error
        return _LOST
    return 0 if flight.complete else _NEEDS_WEIGHTS


def _asked_for(groups: Sequence[LocalGroup], completions: Sequence[Completion]) -> bool:
    """Whether the completions answer these groups."""
    requests = [group.request for group in groups]
    asked = {(request.group_id, index, request.prompt_ids) for request in requests for index in range(request.n)}
    return asked == {(each.group_id, each.index, each.prompt_ids) for each in completions}
