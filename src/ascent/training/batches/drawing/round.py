"""One generation's groups while they are sampled and scored: each that turns out to be without signal brings another.

An example: 3 groups are needed, at most 6 may be drawn, 1 is left over from before.

    first                                 groups 0 and 1 (3 less the one that is left over)
    group 1 is scored, all scores equal   wanted: group 2, while group 0 is still being sampled
    group 2 likewise                      wanted: group 3
    groups 0 and 3 have signal            done: 3 groups with signal, 4 drawn, 2 dropped

How many are drawn depends on the scores alone, not on which came first: as many as are needed, and one for each that is
dropped. So runs with seeded completions repeat however long sampling and judging took.

With `closing` (over-sampling) more groups are asked for than are needed, and the round is closed when enough are there:

    first                                 groups 0 to 3, of which 0 goes on where the last generation left it
    groups 1 and 3 are complete           closed, for one is left over: 0 and 2 are broken off, and go on in the next

Without replacing, groups count as they are complete, however long their scores take: with an engine that is driven step
by step a run with seeds repeats. With replacing, as their scores come.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ascent.rewards.base import drop_rewards, watch_rewards
from ascent.training.batches.drawing.answers import AnswerOf, token_ids
from ascent.training.batches.drawing.prompts import Drawn
from ascent.training.batches.drawing.reward_calls import Question
from ascent.training.batches.drawing.scored_group import GroupRewards, ScoredGroup, Signal
from ascent.training.batches.drawing.scoring import Scoring
from ascent.training.batches.drawing.stragglers import Closing, Straggler
from ascent.training.step.groups import Begun, LocalGroup
from ascent.types import Completion

_WAIT_SECONDS = 0.05  # for a score, while nothing is being sampled


@dataclass(frozen=True, slots=True)
class Judging:
    """How a round's groups are scored, the same in all rounds: `score` is called in a thread that begins with
    `begin_thread`.

    `in_batches`: the engine samples whatever was asked for at once, so that what is wanted is told when all scores are
    there; it then also samples the same in each run. `exposed` is entered while a score is waited for with nothing
    being sampled.
    """

    functions: Sequence[Any]
    score: Callable[[Sequence[Question]], Sequence[GroupRewards]]
    begin_thread: Callable[[], None]
    answer_of: AnswerOf
    signal: Signal
    in_batches: bool
    exposed: Callable[[], AbstractContextManager[None]]


class _Ended(NamedTuple):
    """A completion, as reward functions take it, and its text."""

    completion: Completion
    answer: Any
    text: str


class Round:
    """See the module. A `Further` of the flight that samples it."""

    def __init__(
        self,
        judging: Judging,
        groups: Sequence[LocalGroup],
        draws: Sequence[Drawn],
        *,
        carried: Sequence[ScoredGroup],
        first: int,
        needed: int,
        stragglers: Sequence[Straggler] = (),
        closing: Closing | None = None,
        replaces: bool = True,
    ) -> None:
        """`groups` are all that may be drawn, in order, and `draws` their rows; the `first` ones are asked for at once,
        and with `replaces` others until `needed` have signal, beside those that were `carried` over. The `stragglers`
        are sampled before them."""
        size = groups[0].request.n if groups else 0
        old = [replace(each.group, first=number * each.group.request.n) for number, each in enumerate(stragglers)]
        self.carried, self.stragglers, self.forgotten = tuple(carried), tuple(stragglers), False
        self.groups = old + [replace(group, first=group.first + len(old) * size) for group in groups]
        self.draws = [each.drawn for each in stragglers] + list(draws)
        self.asked = len(old) + first
        self.first = self.groups[: self.asked]
        self.scored: dict[int, ScoredGroup] = {}  # by number, in the order in which they were scored
        self.without_signal: dict[int, str] = {}  # by number: why; empty where nothing is replaced
        self._judging, self._needed, self._most = judging, needed, len(self.groups)
        self._closing, self._replaces = closing, replaces
        self._aim = needed if closing is None else max(needed, self.asked)  # groups that may turn out to be good
        self._ages = {number: each.age for number, each in enumerate(stragglers)}
        self._arrived = {
            number: {each.index: self._judged(group, each, stragglers[number]) for each in _ended(group)}
            for number, group in enumerate(old)
        }
        self._parts: dict[int, list[Completion]] = {}
        self._complete = 0  # groups, all of whose completions are there
        self._scoring: Scoring[int, ScoredGroup] = Scoring(self._score, judging.begin_thread)
        self._thread = threading.get_ident()

    @property
    def done(self) -> bool:
        """See Further."""
        awaited = self._complete if self.closed else self.asked
        return len(self.scored) == awaited and not self._missing()

    @property
    def closed(self) -> bool:
        """See Further."""
        if self._closing is None or any(age >= self._closing.oldest for age in self._ages.values()):
            return False
        good = len(self.scored) - len(self.without_signal) if self._replaces else self._complete
        return good >= self._needed

    def arrived(self, group: LocalGroup, completion: Completion, text: str) -> None:
        """See Further."""
        judging, number = self._judging, self._number(group)
        came = self._arrived.setdefault(number, {})
        came[completion.index] = _Ended(completion, judging.answer_of(group.row, completion, text), text)
        if len(came) == group.request.n:
            self._complete += 1
            self._ages.pop(number, None)
            watches = [
                watch for each in came.values() for watch in watch_rewards(judging.functions, group.row, each.text)
            ]
            self._scoring.add(number, watches)

    def broken_off(self, group: LocalGroup, part: Completion) -> None:
        """See Further."""
        self._parts.setdefault(self._number(group), []).append(part)

    def left(self) -> tuple[Straggler, ...]:
        """The groups that were broken off, those that were drawn first before others."""
        return tuple(self._left(number) for number in sorted(self._parts))

    def wanted(self, *, wait: bool) -> Sequence[LocalGroup]:
        """See Further."""
        if not wait or len(self.scored) == self._complete:
            results = self._scoring.take()
        else:
            here = threading.get_ident() == self._thread  # else it is beside the training, whose clock runs on
            with self._judging.exposed() if here else contextlib.nullcontext():
                results = self._scoring.take(wait=_WAIT_SECONDS)
        for scored in results:
            number = self._number(scored.group)
            self.scored[number] = scored
            if self._replaces and (why := self._judging.signal.missing(scored)) is not None:
                self.without_signal[number] = why
        if self._judging.in_batches and len(self.scored) < self.asked:
            return []
        begin, self.asked = self.asked, self.asked + self._missing()
        if self.done:
            self._scoring.close()
        return self.groups[begin : self.asked]

    def only(self, completions: Sequence[Completion]) -> bool:
        """See Further."""
        groups = {completion.group_id for completion in completions}
        asked = self.groups[: len(groups)]
        requests = {
            (group.request.group_id, k): group.request.prompt_ids for group in asked for k in range(group.request.n)
        }
        given = {(each.group_id, each.index): each.prompt_ids for each in completions}
        if len(asked) < len(self.first) or given != requests:
            return False
        self._most = len(asked)
        return True

    def forget(self) -> None:
        """See Further."""
        self.forgotten = True
        self._scoring.close()
        for number, came in self._arrived.items():
            for each in came.values() if number not in self.scored else ():
                drop_rewards(self._judging.functions, self.groups[number].row, each.text)

    def _missing(self) -> int:
        """How many more are to be drawn."""
        hopeful = self.asked - len(self.without_signal)
        return 0 if self.closed else max(0, min(self._aim - hopeful, self._most - self.asked))

    def _judged(self, group: LocalGroup, completion: Completion, straggler: Straggler) -> _Ended:
        text = straggler.texts[completion.index]
        return _Ended(completion, self._judging.answer_of(group.row, completion, text), text)

    def _left(self, number: int) -> Straggler:
        came = self._arrived.get(number, {})
        parts = sorted(self._parts[number], key=lambda part: part.index)
        begun = Begun(tuple(came[index].completion for index in sorted(came)), tuple(parts))
        return Straggler(
            replace(self.groups[number], begun=begun),
            self.draws[number],
            {index: each.text for index, each in came.items()},
            age=self._ages.get(number, 0) + 1,
        )

    def _score(self, numbers: Sequence[int]) -> list[ScoredGroup]:
        """In the thread that scores."""
        groups = [replace(self.groups[number], begun=None) for number in numbers]
        came = [
            [self._arrived[number][index] for index in range(group.request.n)]
            for number, group in zip(numbers, groups, strict=True)
        ]
        completions = [tuple(each.completion for each in group) for group in came]
        answers = [tuple(each.answer for each in group) for group in came]
        questions = [
            Question(group.row, own, [token_ids(each) for each in completed])
            for group, own, completed in zip(groups, answers, completions, strict=True)
        ]
        indices = [self.draws[number].index for number in numbers]
        rewards = self._judging.score(questions)
        return [ScoredGroup(*each) for each in zip(groups, indices, completions, answers, rewards, strict=True)]

    @staticmethod
    def _number(group: LocalGroup) -> int:
        return group.first // group.request.n


def _ended(group: LocalGroup) -> Sequence[Completion]:
    return () if group.begun is None else group.begun.ended
