"""Ratios with their intervals, and the bound: what a step can't do without."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ascent.bench.training.bound import bound_seconds
from ascent.bench.training.ratio import Ratio, ratio
from stepping.rounds import Round
from stepping.systems import DENSE


def steps_ratio(rounds: Sequence[Round], slower: str, faster: str) -> Ratio | None:
    """How many times longer `slower` takes, from the rounds in which both did a step."""
    return _over(rounds, lambda each: each[slower]["step"] / each[faster]["step"], slower, faster)


def to_bound(rounds: Sequence[Round], system: str = "ascent") -> Ratio | None:
    """How many times longer than the bound a step takes."""
    return _over(rounds, lambda each: each[system]["step"] / bound(each, system), system, DENSE)


def bound(found: Round, system: str = "ascent") -> float:
    """Seconds: what `ascent.bench.training.bound` leaves of this round's step, by TRL's pass of a dense batch in the
    same round."""
    step = found[system]
    return bound_seconds(
        generate=step["generate"],
        per_token=found[DENSE]["per_token"],
        tokens=step["needed_prompt"] + step["needed_completion"],
        optimizer=step["optimizer"],
        sync=step["sync"],
    )


def _over(rounds: Sequence[Round], value: Callable[[Round], float], *systems: str) -> Ratio | None:
    values = [value(each) for each in rounds if all(system in each for system in systems)]
    return ratio(values) if values else None
