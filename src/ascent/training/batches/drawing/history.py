"""How often each task was solved, so that tasks that teach nothing are visible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

WINDOW = 4  # groups of a task that are remembered


@dataclass(frozen=True, slots=True)
class Observation:
    """What a group showed of its task: the total score of each completion that has one, and with verdicts the share of
    completions that passed all tests."""

    task: str
    totals: tuple[float, ...]
    passed: float | None = None


@dataclass(frozen=True, slots=True)
class History:
    """The share of solved completions in each of a task's last groups (`WINDOW`), the newest last.

    Solved is what passes all tests. Without verdicts the share is the group's mean total score, from 0 for the lowest
    that the run has seen to 1 for the highest: for scores of 0 and 1, the same.
    """

    shares: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    lowest: float | None = None
    highest: float | None = None

    def after(self, observations: Iterable[Observation]) -> History:
        """The history with further groups."""
        observations = [each for each in observations if each.totals]
        totals = [total for each in observations for total in each.totals]
        totals += [known for known in (self.lowest, self.highest) if known is not None]
        if not totals:
            return self
        found = History(self.shares, min(totals), max(totals))
        shares: dict[str, tuple[float, ...]] = {}
        for each in observations:
            before = shares.get(each.task, self.shares.get(each.task, ()))
            shares[each.task] = (*before, found.share(each))[-WINDOW:]
        return replace(found, shares={**self.shares, **shares})

    def share(self, observation: Observation) -> float:
        """The share of a group's completions that are solved; the group has at least one total score."""
        if observation.passed is not None:
            return observation.passed
        if self.lowest is None or self.highest is None or self.lowest == self.highest:
            return 0.5  # nobody knows
        mean = sum(observation.totals) / len(observation.totals)
        return (mean - self.lowest) / (self.highest - self.lowest)

    @property
    def always_solved(self) -> int:
        """How many tasks were solved by every completion that is remembered."""
        return sum(set(shares) == {1.0} for shares in self.shares.values())

    @property
    def never_solved(self) -> int:
        """How many tasks were solved by none."""
        return sum(set(shares) == {0.0} for shares in self.shares.values())
