"""A whole group of completions with its scores, and whether it can teach anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ascent.training.batches.signal import without_signal
from ascent.training.step.groups import LocalGroup
from ascent.types import Completion, Score


@dataclass(frozen=True, slots=True)
class GroupRewards:
    """What the reward functions gave to a group's completions: `by_function` (completions x functions, float32, NaN for
    nothing), the verdicts' `scores` (empty without any) with their `seconds` of work, and what the functions asked to
    be logged."""

    by_function: torch.Tensor
    scores: tuple[Score, ...] = ()
    seconds: float = 0.0
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    metrics: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ScoredGroup:
    """`drawn_index` is the dataset's row. `answers` are the completions as reward functions take them."""

    group: LocalGroup
    drawn_index: int
    completions: tuple[Completion, ...]
    answers: tuple[Any, ...]
    rewards: GroupRewards

    @property
    def weight_version(self) -> int:
        """Optimizer steps behind the oldest weights that sampled one of its completions."""
        return min(completion.weight_version for completion in self.completions)

    @property
    def unscored(self) -> bool:
        """Whether no reward function gave any of them a reward."""
        return bool(self.rewards.by_function.isnan().all())

    @property
    def passed(self) -> float | None:
        """The share of judged completions that pass all tests; None where none has a verdict."""
        verdicts = [score.verdict for score in self.rewards.scores if score.verdict is not None]
        judged = [verdict.all_passed for verdict in verdicts if not verdict.infrastructure_error]
        return sum(judged) / len(judged) if judged else None


@dataclass(frozen=True, slots=True)
class Signal:
    """How scores become advantages: TRL's `reward_weights` (of each function) and `multi_objective_aggregation`."""

    weights: torch.Tensor
    each_function: bool = False  # "normalize_then_sum": each function's rewards are compared among themselves

    def totals(self, group: ScoredGroup) -> torch.Tensor:
        """Weighted sums, float32, NaN where no function gave a reward."""
        rewards_GF = group.rewards.by_function
        totals_G = (rewards_GF * self.weights).nansum(dim=1)
        totals_G[rewards_GF.isnan().all(dim=1)] = torch.nan
        return totals_G

    def missing(self, group: ScoredGroup) -> str | None:
        """Why the group teaches nothing; None where it does."""
        if group.unscored:
            return "not scored by any reward function"
        rewards_GF = group.rewards.by_function
        silent_G = without_signal(rewards_GF, self.weights, len(rewards_GF), each_function=self.each_function)
        return "no signal: all scores of its group are equal" if silent_G[0] else None
