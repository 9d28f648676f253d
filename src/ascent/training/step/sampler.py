"""Completions for the trainer: current weights into the engine, groups out, one generation ahead where that is wanted.

All of it is called by the trainer's thread. A generation that is sampled ahead has a thread that takes its completions;
the engine is not touched meanwhile.

An example with `rollout.staleness: 1`, generation by generation (v2: the weights after two optimizer steps):

    sample(generation 0)        v0 into the engine, 0 is sampled and comes back
    sample_ahead(generation 1)  nothing to send, v0 is there; 1 is on its way while the trainer makes step 1
    sample(generation 1)        waits for what is left of 1, which was sampled with v0: one step old
    sample_ahead(generation 2)  v1 into the engine; 2 is on its way while the trainer makes step 2
    an evaluation               asks for other groups: they are sampled at once, and 2 stays where it is
    sample(generation 2)        comes back, sampled with v1
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ascent.rollout.engine import Canary, RolloutEngine, WeightsLostError
from ascent.training.step.agreement import Agreement
from ascent.training.step.clock import StepClock
from ascent.training.step.flight import Flight, Further
from ascent.training.step.groups import LocalGroup
from ascent.types import Completion, TokenIds

if TYPE_CHECKING:
    from torch import Tensor

# what is done with a completion as it ends: its place in the local batch, the row of its prompt, its text
Receive = Callable[[int, Mapping[str, Any], str], None]
# what is done with one that was handed on and then won't be asked for: the row of its prompt, its text
Drop = Callable[[Mapping[str, Any], str], None]


class TrainedWeights(Protocol):
    """The weights that are being trained, as the sampler sees them."""

    @property
    def steps(self) -> int:
        """How many optimizer steps made them."""
        ...

    def content(self) -> str:
        """A digest of them, which any change changes, whoever made it."""
        ...

    def named_tensors(self) -> Iterable[tuple[str, Tensor]]:
        """All of them, under their names in a Hugging Face checkpoint. Collective: every rank must walk to the end."""
        ...

    def canary(self) -> Canary | None:
        """What they make of known sequences; None where no weights travel. Collective."""
        ...


class Sampler:
    """Samples with the newest weights, and hands each completion on as it ends."""

    def __init__(
        self,
        engine: RolloutEngine,
        weights: TrainedWeights,
        agreement: Agreement,
        clock: StepClock,
        decode: Callable[[TokenIds], str],
        receive: Receive,
        progress: Callable[[int, int], None],
        drop: Drop = lambda row, text: None,
    ) -> None:
        """`decode` gives the text of token ids, in any thread. `receive` takes completions for which `sample` names no
        receiver of their own, `drop` those of them that were sampled ahead and then not asked for.
        `progress(done, total)` is told how many of a generation have ended on this rank."""
        self._engine, self._weights, self._agreement, self._clock = engine, weights, agreement, clock
        self._decode, self._receive, self._progress, self._drop = decode, receive, progress, drop
        self._in_engine: tuple[int, str] | None = None  # optimizer steps and content of what the engine holds
        self._deliveries: list[int] = []  # optimizer steps of each; the engine's versions are places in this list
        self._ahead: Flight | None = None
        self._from_checkpoint: list[Completion] | None = None
        self._dropped = 0

    def sync(self) -> None:
        """Move the current weights into the engine, unless it has them. Collective over all ranks."""
        current, changed = self._compare()
        if changed:
            self.finish_ahead()  # it ends with the weights that it began with
            self._deliver(current, changed)

    def sample(
        self, groups: Sequence[LocalGroup], receive: Receive | None = None, further: Further | None = None
    ) -> list[Completion]:
        """Sample all groups, or take them from what was sampled ahead. In order of their places in the local batch.

        `receive` is called for each completion as it ends; `further` says which groups are to be sampled after these
        (see Flight). Collective over all ranks, which go on or end alike: raises what `Agreement.settle` raises.
        """
        flight, self._ahead = self._ahead, None
        if flight is not None:
            completions = self._finish(flight)
            if flight.asked == list(groups):
                return completions
            self._ahead = flight  # what is asked for comes in between, such as an evaluation
        kept = self._from_checkpoint
        if kept is not None and self._agreement.ranks.any_rank(_means(groups, kept)):  # else this comes in between, too
            self._from_checkpoint = None
            answers = _answers(groups, kept) if further is None else further.only(kept)
            if not self._agreement.ranks.any_rank(not answers):
                return self._finish(self._flight(groups, receive, further, kept))
            self._dropped += len(kept)
        return self._finish(self._launch(groups, receive, further))

    def sample_ahead(self, groups: Sequence[LocalGroup], further: Further | None = None) -> None:
        """Begin to sample what `sample` will ask for next, with the current weights."""
        self.drop_ahead()
        self._ahead = self._launch(groups, None, further)
        self._ahead.start()

    def finish_ahead(self) -> list[Completion]:
        """Wait for what is sampled ahead, which stays there to be asked for; none when there is nothing."""
        return [] if self._ahead is None else self._finish(self._ahead)

    def keep(self, completions: Sequence[Completion]) -> None:
        """Completions that a checkpoint kept: `sample` returns them when it asks for them on all ranks. Called on every
        rank, also where there are none. Collective."""
        none_anywhere = self._agreement.ranks.max_over_ranks(len(completions)) == 0
        self._from_checkpoint = None if none_anywhere else list(completions)

    def drop_ahead(self) -> None:
        """Let go of what was sampled ahead; it is counted."""
        self.finish_ahead()
        self._dropped += self._tell_dropped(self._ahead) + len(self._from_checkpoint or ())
        self._ahead = self._from_checkpoint = None

    def forget_ahead(self) -> None:
        """Let go of what was sampled ahead without waiting for it: its servers are gone."""
        flight, self._ahead = self._ahead, None
        if flight is not None:
            flight.join()
            self._tell_dropped(flight)

    def take_dropped(self) -> int:
        """How many completions were sampled ahead and then not asked for, since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def _tell_dropped(self, flight: Flight | None) -> int:
        """Tell of each completion of a flight that has come back; how many these are."""
        arrived = flight.arrived() if flight is not None else []
        if flight is not None and flight.further is not None:
            flight.further.forget()
        else:
            for group, completion in arrived:
                self._drop(group.row, self._decode(completion.token_ids))
        return len(arrived)

    def _launch(self, groups: Sequence[LocalGroup], receive: Receive | None, further: Further | None) -> Flight:
        """Weights into the engine, and the groups after them. All ranks have launched, or all end."""
        self.sync()
        flight, failure = None, None
        try:
            flight = self._flight(groups, receive, further)
        except Exception as error:  # noqa: BLE001 - every rank raises it
            failure = error
        self._agreement.raise_on_all_ranks(failure)
        assert flight is not None
        return flight

    def _flight(
        self,
        groups: Sequence[LocalGroup],
        receive: Receive | None,
        further: Further | None,
        already_sampled: Sequence[Completion] = (),
    ) -> Flight:
        receive = receive or self._receive
        arrived, total = 0, sum(group.coming for group in groups)
        before = sum(group.request.n for group in groups) - total  # that ended in earlier generations

        def arrive(group: LocalGroup, completion: Completion) -> None:
            nonlocal arrived, total
            arrived, text = arrived + 1, self._decode(completion.token_ids)
            receive(group.first + completion.index, group.row, text)
            if further is not None:
                further.arrived(group, completion, text)
            total = max(total, group.first + group.request.n - before)  # groups that were added have the last places
            self._progress(arrived, total)

        called, steps_of = self._agreement.is_called, self._deliveries.__getitem__
        return Flight(self._engine, groups, arrive, called, steps_of, already_sampled, further)

    def _finish(self, flight: Flight) -> list[Completion]:
        """Wait for a flight, bringing weights to servers that lost theirs. All ranks go on or end alike."""
        repeated: Counter[type[Exception]] = Counter()
        with self._clock.phase("generate"):
            flight.join()
            while self._agreement.settle(_what_ended(flight), repeated):
                self._deliver(*self._compare())
        return flight.completions()

    def _compare(self) -> tuple[tuple[int, str], bool]:
        """The steps and the content of the weights, and whether any rank's differ from what the engine was given.
        Collective."""
        current = (self._weights.steps, self._weights.content())
        return current, self._agreement.ranks.any_rank(current != self._in_engine)

    def _deliver(self, current: tuple[int, str], changed: bool) -> None:
        """Bring the weights into the engine, as often as the table of retries says. Collective.

        Weights that `changed` get a version of their own: optimizer steps don't tell them apart.
        """
        if changed:
            self._deliveries.append(current[0])
        version = len(self._deliveries) - 1
        repeated: Counter[type[Exception]] = Counter()
        with self._clock.phase("sync"):
            canary = self._weights.canary()
            while True:
                walk, failure = _Walk(self._weights.named_tensors()), None
                try:
                    self._engine.update_weights(walk, version, canary)
                except Exception as error:
                    if walk.failed:  # the others may wait inside the walk: the launcher ends them
                        raise
                    failure = error
                if not self._agreement.settle(failure, repeated):
                    break
        self._in_engine = current


class _Walk:
    """Iterates over the weights, and notes whether making them failed."""

    def __init__(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self._tensors = iter(tensors)
        self.failed = False

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self

    def __next__(self) -> tuple[str, Tensor]:
        try:
            return next(self._tensors)
        except StopIteration:
            raise
        except Exception:
            self.failed = True
            raise


def _what_ended(flight: Flight) -> Exception | None:
    """Take a flight's completions as they come: None when all have come back, or when another rank calls; otherwise
    what stopped it."""
    try:
        flight.run()
    except Exception as error:  # noqa: BLE001 - every rank raises it
        return error
    return WeightsLostError("the servers were restarted and need the weights again") if flight.needs_weights else None


def print_on_stderr(text: str) -> None:
    """For sentences to the user, from whichever rank they concern."""
    print(text, file=sys.stderr, flush=True)


def _means(groups: Sequence[LocalGroup], completions: Sequence[Completion]) -> bool:
    """Whether the completions are of the generation that the groups ask for, by their groups' names."""
    return bool({group.request.group_id for group in groups} & {each.group_id for each in completions})


def _answers(groups: Sequence[LocalGroup], completions: Sequence[Completion]) -> bool:
    """Whether the completions are those that the groups ask for."""
    requests = [group.request for group in groups]
    asked = {(request.group_id, index, request.prompt_ids) for request in requests for index in range(request.n)}
    return asked == {(each.group_id, each.index, each.prompt_ids) for each in completions}
