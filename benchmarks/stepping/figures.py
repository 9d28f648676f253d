"""Ratios with their intervals, and the bound: what a step can't do without."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepping.rounds import Round
from stepping.systems import DENSE

# Student's t, 97.5 %, by degrees of freedom from 1 on; beyond, the normal distribution's
_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True, slots=True)
class Ratio:
    """The geometric mean of a ratio over rounds, and its 95 % interval (Student's t of the logarithms)."""

    mean: float
    low: float
    high: float
    rounds: int

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})" if self.rounds > 1 else f"{self.mean:.2f} (once)"


def ratio(values: Sequence[float]) -> Ratio:
    """Of one value a round."""
    logs = [math.log(value) for value in values]
    mean, half = statistics.mean(logs), 0.0
    if len(logs) > 1:
        freedom = len(logs) - 1
        t = _T_975[freedom - 1] if freedom <= len(_T_975) else 1.96
        half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


def steps_ratio(rounds: Sequence[Round], slower: str, faster: str) -> Ratio | None:
    """How many times longer `slower` takes, from the rounds in which both did a step."""
    return _over(rounds, lambda each: each[slower]["step"] / each[faster]["step"], slower, faster)


def to_bound(rounds: Sequence[Round], system: str = "ascent") -> Ratio | None:
    """How many times longer than the bound a step takes."""
    return _over(rounds, lambda each: each[system]["step"] / bound(each, system), system, DENSE)


def bound(found: Round, system: str = "ascent") -> float:
    """Seconds: what is left of this round's step when rewards are hidden behind sampling, no log-probabilities are
    recomputed, and training costs only the tokens that carry gradient, without padding or repetition:

        sampling + seconds a token of TRL's forward and backward pass of a dense batch, measured in the same round
        * (for each group with signal: its prompt once, and its different completions with an advantage)
        + the optimizer + the weights' way to the engine
    """
    step = found[system]
    tokens = step["needed_prompt"] + step["needed_completion"]
    return step["generate"] + found[DENSE]["per_token"] * tokens + step["optimizer"] + step["sync"]


def _over(rounds: Sequence[Round], value: Callable[[Round], float], *systems: str) -> Ratio | None:
    values = [value(each) for each in rounds if all(system in each for system in systems)]
    return ratio(values) if values else None
