"""The mean step of a trial: where its seconds went, and what each phase could not do without."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ascent.bench.training.bound import SMALLEST_ADVANTAGE, Needed, bound_seconds, needed
from ascent.bench.training.ratio import Ratio, ratio
from ascent.errors import InputError
from ascent.training.trial.found import Tried

PHASES = {
    "generate": "sampling",
    "reward_exposed": "waiting for rewards",
    "logps": "log-probabilities",
    "update": "the update",
    "sync": "moving weights to the engine",
    "other": "the rest",
}
_FELT = 0.05  # of a step


@dataclass(frozen=True, slots=True)
class Measured:
    """Means over `steps` steps, in seconds; those of the phases add up to `step`. `floors` are what the bound leaves of
    each phase. `to_bound` is how many times longer than the bound a step takes, `step_seconds` each step by its number.
    `samples` and `tokens` (of completions) are of a step. `samples` is 0 where a step sampled nothing."""

    steps: int
    step: float
    phases: Mapping[str, float]
    floors: Mapping[str, float]
    optimizer: float
    per_token: float
    needed: float  # tokens a step that carry gradient, on one process
    to_bound: Ratio
    step_seconds: Mapping[int, float]
    samples: float
    tokens: float
    silent: float  # share of the groups that teach nothing

    @property
    def bound(self) -> float:
        """Seconds of a step."""
        return sum(self.floors.values())

    @property
    def held_by(self) -> str | None:
        """The phase that is furthest above what it can't do without; None where none is so by as much as is felt."""
        above = {name: self.phases[name] - self.floors[name] for name in self.phases}
        worst = max(above, key=lambda name: above[name])
        return worst if above[worst] >= _FELT * self.step else None

    @property
    def largest(self) -> str:
        """The phase that takes most."""
        return max(self.phases, key=lambda name: self.phases[name])


def measured(tried: Tried) -> Measured:
    """Of a trial that came to its end, with `dense`. Raises InputError where it has no whole step."""
    lines, dense = tried.timed, tried.found.dense
    if not lines or dense is None:
        raise InputError("no step was measured", "What ended the training stands above.")
    by_generation = _by_generation(tried.rows)
    rows_of_step = _rows_of_step(tried, by_generation)
    steps = []
    for line in lines:
        rows = by_generation.get(line["generation"], [])
        share = min(1.0, rows_of_step / len(rows)) if rows else 0.0
        optimizer = tried.found.optimizer[line["step"] - 1]
        tokens = share * _needed(rows).tokens / tried.found.processes
        steps.append((line["times"], optimizer, tokens))
    phases = {name: statistics.fmean(times[name] for times, _, _ in steps) for name in PHASES}
    optimizer, tokens = (statistics.fmean(each[place] for each in steps) for place in (1, 2))
    bounds = [
        bound_seconds(
            generate=times["generate"], per_token=dense.per_token, tokens=some, optimizer=spent, sync=times["sync"]
        )
        for times, spent, some in steps
    ]
    floors = dict.fromkeys(PHASES, 0.0) | {name: phases[name] for name in ("generate", "sync")}
    floors["update"] = dense.per_token * tokens + optimizer
    kept = [row for generation in by_generation.values() for row in generation]
    return Measured(
        steps=len(lines),
        step=statistics.fmean(times["step"] for times, _, _ in steps),
        phases=phases,
        floors=floors,
        optimizer=optimizer,
        per_token=dense.per_token,
        needed=tokens,
        to_bound=ratio([times["step"] / least for (times, _, _), least in zip(steps, bounds, strict=True)]),
        step_seconds={line["step"]: line["times"]["step"] for line in lines},
        samples=rows_of_step,
        tokens=rows_of_step * statistics.fmean(len(row["completion_ids"]) for row in kept) if kept else 0.0,
        silent=statistics.fmean(not carries(row) for row in kept) if kept else 0.0,
    )


def carries(row: Mapping[str, Any]) -> bool:
    """Whether a completion moves the policy: it is kept, and has an advantage."""
    return bool(row["kept"]) and abs(row["advantage"] or 0.0) > SMALLEST_ADVANTAGE


def _needed(rows: Sequence[Mapping[str, Any]]) -> Needed:
    return needed(
        (np.asarray(row["prompt_ids"], np.int32), np.asarray(row["completion_ids"], np.int32), carries(row))
        for row in rows
    )


def _by_generation(rows: Sequence[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    """The completions that are trained on; of groups that were dropped none is."""
    found: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["advantage"] is not None:
            found[row["generation"]].append(row)
    return found


def _rows_of_step(tried: Tried, by_generation: Mapping[int, Sequence[Any]]) -> float:
    """Completions that a step is trained on: a generation may feed several, and a step take several generations."""
    steps = len({line["step"] for line in tried.lines})
    return sum(map(len, by_generation.values())) / steps if steps else 0.0
