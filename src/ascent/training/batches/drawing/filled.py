"""A generation whose groups were chosen: what is trained on, what was dropped, and the counts of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch

from ascent.training.batches.drawing.history import Observation
from ascent.training.batches.drawing.scored_group import ScoredGroup
from ascent.training.step.groups import LocalGroup
from ascent.types import Completion, Score


@dataclass(frozen=True, slots=True)
class Counts:
    """Of this rank's part of a generation, in groups: `drawn` were sampled for it, `dropped` are not trained on,
    `without_signal` are trained on to fill it up, `surplus` are left for the next. `passes` says how often the dataset
    has been drawn; `always_solved` and `never_solved` count the tasks that were so lately, on all ranks. `stragglers`
    were broken off (None: none could be), with `carried_tokens`."""

    needed: int
    drawn: int
    dropped: int
    without_signal: int
    surplus: int
    passes: float
    always_solved: int
    never_solved: int
    observations: tuple[Observation, ...]  # of all groups that were scored
    stragglers: int | None = None
    carried_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Filled:
    """`chosen` makes the batch, in its order; each of `dropped` has the reason."""

    chosen: tuple[ScoredGroup, ...]
    dropped: tuple[tuple[ScoredGroup, str], ...]
    counts: Counts

    def rewards(self) -> torch.Tensor:
        """The batch's rewards (completions x functions), float32, NaN for nothing."""
        return torch.cat([each.rewards.by_function for each in self.chosen])

    def answers(self) -> list[Any]:
        """The batch's completions as reward functions took them."""
        return [answer for each in self.chosen for answer in each.answers]

    def columns(self) -> dict[str, list[Any]]:
        """What reward functions logged for each completion of the batch, None where a group has nothing."""
        names = sorted({name for each in self.chosen for name in each.rewards.columns})
        return {name: list(chain.from_iterable(_column(each, name) for each in self.chosen)) for name in names}

    def seconds(self) -> float:
        """What judging worked for all that was drawn."""
        return sum(each.rewards.seconds for each in (*self.chosen, *(group for group, _ in self.dropped)))


def _column(group: ScoredGroup, name: str) -> Sequence[Any]:
    return group.rewards.columns.get(name) or [None] * len(group.completions)


def places_of(groups: Sequence[ScoredGroup]) -> list[LocalGroup]:
    """The groups of a batch, each at its place in it."""
    found, first = [], 0
    for each in groups:
        found.append(replace(each.group, first=first))
        first += each.group.request.n
    return found


def rows_of(groups: Sequence[ScoredGroup]) -> list[dict[str, Any]]:
    """The dataset's row of each completion."""
    return [dict(each.group.row) for each in groups for _ in each.completions]


def completions_of(groups: Sequence[ScoredGroup]) -> list[Completion]:
    """All completions, in order."""
    return [completion for each in groups for completion in each.completions]


def scores_of(groups: Sequence[ScoredGroup]) -> list[Score]:
    """The verdicts' scores, in order; empty without a reward function that gives verdicts."""
    return [score for each in groups for score in each.rewards.scores]
