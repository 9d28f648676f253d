"""The seams of the rewards: TRL's callable, what may start early, and what tells more than a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ascent.types import Score, Task

if TYPE_CHECKING:
    from ascent.config.sections import RewardSection
    from ascent.sandbox.judges import Judges

Completion = str | Sequence[Mapping[str, Any]]  # text, or chat messages as TRL passes them


# TRL's signature of a reward function: (prompts=, completions=, completion_ids=, the dataset's columns=...) -> the
# reward of each completion, None where there is none to give (it is masked if no other function rewards it).
RewardFunction = Callable[..., Sequence[float | None]]


@runtime_checkable
class StreamedReward(Protocol):
    """A reward function that can begin before it is asked, so that its work runs beside sampling."""

    def start(self, row: Mapping[str, Any], text: str) -> None:
        """A completion of the dataset's `row` has ended; the call returns at once. It may come from another thread than
        the call for the rewards, for completions of the batch after the one that is asked for."""
        ...


@runtime_checkable
class DroppableReward(Protocol):
    """A reward function that keeps what it began until it is asked for."""

    def drop(self, row: Mapping[str, Any], text: str) -> None:
        """A completion of the dataset's `row` that was started won't be asked for."""
        ...


@runtime_checkable
class WatchedReward(Protocol):
    """A reward function that says when a completion's reward can be given without waiting."""

    def watch(self, row: Mapping[str, Any], text: str) -> Callable[[], bool]:
        """What tells, at once and in any thread, whether it can for a completion of the dataset's `row` that was
        started."""
        ...


@runtime_checkable
class ScoredReward(Protocol):
    """A reward function that says how each reward came about."""

    scores: Sequence[Score]  # of the last batch, in its order
    seconds: float  # of work for the last batch, whenever and in how many processes it was done


@dataclass(frozen=True, slots=True)
class RewardInputs:
    """What a run gives to the rewards that its configuration names (`ascent.tables.REWARDS`)."""

    tasks: tuple[Task, ...]  # training and held-out
    section: RewardSection
    sandbox: Judges
    prompt_opens_thought: bool  # the chat template ends prompts with `<think>` or the like


def start_rewards(functions: Sequence[Any], row: Mapping[str, Any], text: str) -> None:
    """Begin with those of the reward functions that can."""
    for function in functions:
        if isinstance(function, StreamedReward):
            function.start(row, text)


def drop_rewards(functions: Sequence[Any], row: Mapping[str, Any], text: str) -> None:
    """Tell those of the reward functions that keep what they began for a completion that it won't be asked for."""
    for function in functions:
        if isinstance(function, DroppableReward):
            function.drop(row, text)


def watch_rewards(functions: Sequence[Any], row: Mapping[str, Any], text: str) -> list[Callable[[], bool]]:
    """What tells whether the rewards of a completion that was started can be given without waiting, of those of the
    reward functions that say so."""
    return [function.watch(row, text) for function in functions if isinstance(function, WatchedReward)]
