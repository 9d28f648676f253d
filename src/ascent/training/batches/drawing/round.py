"""One generation's groups while they are sampled and scored: each that turns out to be without signal brings another.

An example: 3 groups are needed, at most 6 may be drawn, 1 is left over from before.

    first                                 groups 0 and 1 (3 less the one that is left over)
    group 1 is scored, all scores equal   wanted: group 2, while group 0 is still being sampled
    group 2 likewise                      wanted: group 3
    groups 0 and 3 have signal            done: 3 groups with signal, 4 drawn, 2 dropped

How many are drawn depends on the scores alone, not on which came first: as many as are needed, and one for each that is
dropped. So runs with seeded completions repeat however long sampling and judging took.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ascent.rewards.base import drop_rewards, watch_rewards
from ascent.training.batches.drawing.answers import AnswerOf, token_ids
from ascent.training.batches.drawing.prompts import Drawn
from ascent.training.batches.drawing.reward_calls import Question
from ascent.training.batches.drawing.scored_group import GroupRewards, ScoredGroup, Signal
from ascent.training.batches.drawing.scoring import Scoring
from ascent.training.step.groups import LocalGroup
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
    ) -> None:
        """`groups` are all that may be drawn, in order, and `draws` their rows; the `first` ones are asked for at once,
        and others until `needed` have signal, beside those that were `carried` over."""
        self.carried, self.forgotten = tuple(carried), False
        self.groups, self.draws = list(groups), list(draws)
        self.asked, self.first = first, self.groups[:first]
        self.scored: dict[int, ScoredGroup] = {}  # by number, in the order in which they were scored
        self.without_signal: dict[int, str] = {}  # by number: why
        self._judging, self._needed, self._most = judging, needed, len(self.groups)
        self._arrived: dict[int, dict[int, tuple[Completion, Any]]] = {}
        self._texts: dict[int, list[str]] = {}
        self._scoring: Scoring[int, ScoredGroup] = Scoring(self._score, judging.begin_thread)
        self._thread = threading.get_ident()

    @property
    def done(self) -> bool:
        """See Further."""
        return len(self.scored) == self.asked and not self._missing()

    def arrived(self, group: LocalGroup, completion: Completion, text: str) -> None:
        """See Further."""
        judging, number = self._judging, self._number(group)
        came = self._arrived.setdefault(number, {})
        came[completion.index] = completion, judging.answer_of(group.row, completion, text)
        self._texts.setdefault(number, []).append(text)
        if len(came) == group.request.n:
            watches = [
                watch for each in self._texts[number] for watch in watch_rewards(judging.functions, group.row, each)
            ]
            self._scoring.add(number, watches)

    def wanted(self, *, wait: bool) -> Sequence[LocalGroup]:
        """See Further."""
        if not wait or len(self.scored) == self.asked:
            results = self._scoring.take()
        else:
            here = threading.get_ident() == self._thread  # else it is beside the training, whose clock runs on
            with self._judging.exposed() if here else contextlib.nullcontext():
                results = self._scoring.take(wait=_WAIT_SECONDS)
        for scored in results:
            number = self._number(scored.group)
            self.scored[number] = scored
            if (why := self._judging.signal.missing(scored)) is not None:
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
        for number, texts in self._texts.items():
            for text in texts if number not in self.scored else ():
                drop_rewards(self._judging.functions, self.groups[number].row, text)

    def _missing(self) -> int:
        """How many more are to be drawn."""
        hopeful = self.asked - len(self.without_signal)
        return max(0, min(self._needed - hopeful, self._most - self.asked))

    def _score(self, numbers: Sequence[int]) -> list[ScoredGroup]:
        """In the thread that scores."""
        groups = [self.groups[number] for number in numbers]
        came = [
            [self._arrived[number][index] for index in range(group.request.n)]
            for number, group in zip(numbers, groups, strict=True)
        ]
        completions = [tuple(each for each, _ in group) for group in came]
        answers = [tuple(answer for _, answer in group) for group in came]
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
