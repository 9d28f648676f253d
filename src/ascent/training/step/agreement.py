"""What is tried again, how often, and how all ranks of a training go on or end alike.

The engine says what happened by the class of an error (`rollout/engine.py`), and repeats nothing. Here stands what
follows from it, as a table, and `Agreement.settle`, through which every collective decision goes.

An example with two ranks. Rank 0 sends new weights, and its only server answers with HTTP 500:

    rank 0: update_weights raises WeightTransferError      rank 1: update_weights returns
    rank 0: settle(error)                                  rank 1: settle(None)      <- a collective call
    both:   the gravest of what happened is WeightTransferError; the table allows it three times more: True
    both:   update_weights again; it succeeds; settle(None) says False, and both go on to sample

Had the server said 500 four times, both ranks would have raised the same WeightTransferError, each at its own
`settle`, and none would wait for the other in a call that never comes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ascent.errors import InputError
from ascent.rollout.engine import (
    EngineLostError,
    PromptTooLongError,
    ServerMemoryError,
    ServersRestartingError,
    WeightMismatchError,
    WeightsLostError,
    WeightSyncError,
    WeightTransferError,
)
from ascent.training.step.ranks import Ranks

ENDING, WEIGHTS = "ending", "weights"  # what a rank calls to the others while they may be waiting for completions


@dataclass(frozen=True, slots=True)
class Rule:
    """What follows when `happened` is the gravest thing that any rank reports.

    `repeats`: how often it may be tried again in one weight update, or while one generation is sampled; None: as often
    as it happens. `waits`: seconds before the first, second, ... repetition; the last holds for all later ones.
    """

    happened: type[Exception]
    repeats: int | None
    waits: tuple[float, ...]
    why: str


# From the mildest to the gravest. All ranks agree on each of them: sending weights is collective, and a rank that goes
# on alone would wait for the others for ever. What isn't listed is never repeated.
TABLE = (
    Rule(WeightsLostError, None, (0.0,), "a restarted server needs the weights; its supervisor bounds the restarts"),
    Rule(WeightMismatchError, 1, (0.0,), "a second copy shows whether it was an accident or a fault"),
    Rule(WeightTransferError, 3, (0.5, 3.0, 10.0), "a server that lives may answer the next time, or be restarted"),
    Rule(ServersRestartingError, 2, (0.0,), "the engine waits for a server by itself; a third death is no accident"),
)
# These are raised on every rank as what they were on one; of others, only the text is known elsewhere.
_KNOWN: tuple[type[Exception], ...] = (
    *(rule.happened for rule in TABLE),
    WeightSyncError,
    ServerMemoryError,
    EngineLostError,
    PromptTooLongError,
)


class OtherRankError(RuntimeError):
    """Another rank failed in a way of its own; the message is its error's."""


class Agreement:
    """The common decisions of a training's ranks. `ended_with` is the error with which all of them end, if they do."""

    def __init__(self, ranks: Ranks, tell: Callable[[str], None] = lambda text: None) -> None:
        """`tell` is given a sentence about each repetition, on the rank where it was needed."""
        self.ranks = ranks
        self.ended_with: Exception | None = None
        self._tell = tell

    def settle(self, failure: Exception | None, repeated: Counter[type[Exception]]) -> bool:
        """Whether all ranks must try again (True) or may go on (False). Collective.

        `failure` is what happened on this rank, None for nothing. `repeated` counts the repetitions of one task, such
        as one weight update, and is kept by the caller from one call to the next. Raises on every rank the same error
        where the table has no further repetition: the gravest, of the lowest rank that reports it.
        """
        here = _gravity(failure)
        if failure is not None:
            self.ranks.call(WEIGHTS if isinstance(failure, WeightsLostError) else ENDING)
        gravest = self.ranks.max_over_ranks(here)
        if gravest == 0:
            return False
        rule = TABLE[gravest - 1] if gravest <= len(TABLE) else None
        if rule is None or (rule.repeats is not None and repeated[rule.happened] >= rule.repeats):
            self._end(failure if here == gravest else None)
        assert rule is not None
        if here == gravest and not isinstance(failure, WeightsLostError):
            self._tell(f"note: {failure}; trying again")
        time.sleep(rule.waits[min(repeated[rule.happened], len(rule.waits) - 1)])
        repeated[rule.happened] += 1
        return True

    def raise_on_all_ranks(self, failure: Exception | None) -> None:
        """`settle` for what is never repeated: all ranks go on, or all end with the same error. Collective."""
        if self.ranks.max_over_ranks(int(failure is not None)):
            self._end(failure)

    def is_called(self) -> str | None:
        """Whether another rank waits for this one, because it ends (ENDING) or needs weights (WEIGHTS)."""
        return ENDING if self.ended_with is not None else self.ranks.called(ENDING, WEIGHTS)

    def _end(self, failure: Exception | None) -> None:
        """Raise the error of the lowest rank that has one, on every rank. Collective."""
        told = self.ranks.exchange(None if failure is None else _in_words(failure))
        first = next(rank for rank, words in enumerate(told) if words is not None)
        error = failure if first == self.ranks.rank else _from_words(told[first])
        assert error is not None
        self.ended_with = error
        raise error


def _gravity(failure: Exception | None) -> int:
    """The place in the table, from 1 on; beyond it for what is never repeated, 0 for nothing."""
    if failure is None:
        return 0
    places = (place for place, rule in enumerate(TABLE, start=1) if isinstance(failure, rule.happened))
    return next(places, len(TABLE) + 1)


def _in_words(failure: Exception) -> tuple[str, str, str]:
    if isinstance(failure, InputError):
        return "InputError", failure.message, failure.mend
    return type(failure).__name__, str(failure), ""


def _from_words(words: tuple[str, str, str]) -> Exception:
    name, text, mend = words
    if name == "InputError":
        return InputError(text, mend)
    kind = next((kind for kind in _KNOWN if kind.__name__ == name), OtherRankError)
    return kind(text)
