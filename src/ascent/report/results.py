"""What a finished run has to show: its steps and its held-out evaluations, read from the run directory."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent.errors import InputError
from ascent.json_numbers import in_numbers


@dataclass(frozen=True, slots=True)
class Step:
    """One training step. `pass_rate` and `reward` are means over its completions, None when nothing could be judged."""

    number: int
    seconds: float
    reward: float | None
    pass_rate: float | None


@dataclass(frozen=True, slots=True)
class HeldOutTask:
    """One held-out task in one evaluation; `greedy` and `sampled` are shares of completions that passed all tests."""

    task_id: str
    family: str
    prompt: str
    greedy: float
    sampled: float
    completion: str


@dataclass(frozen=True, slots=True)
class Change:
    """A held-out task before and after training."""

    before: HeldOutTask
    after: HeldOutTask

    @property
    def gain(self) -> float:
        """How much more of its completions pass, greedy and sampled together (-2 to 2)."""
        return self.after.greedy - self.before.greedy + self.after.sampled - self.before.sampled


@dataclass(frozen=True, slots=True)
class Results:
    """A run's steps in order, and its evaluations; `before` or `after` is empty where it was not evaluated."""

    path: Path
    steps: tuple[Step, ...]
    before: tuple[HeldOutTask, ...]
    after: tuple[HeldOutTask, ...]

    def changes(self) -> list[Change]:
        """Every task that was evaluated before and after."""
        later = {task.task_id: task for task in self.after}
        return [Change(task, later[task.task_id]) for task in self.before if task.task_id in later]

    def most_improved(self, count: int = 3) -> list[Change]:
        """The tasks that gained most, one of each family while there are others; none that gained nothing."""
        gained = sorted((c for c in self.changes() if c.gain > 0), key=lambda change: -change.gain)
        # read backwards, so that the best of each family is what stays
        firsts = list({change.after.family: change for change in reversed(gained)}.values())
        best = sorted(firsts, key=lambda change: -change.gain)
        return [*best, *(change for change in gained if change not in best)][:count]


def read_results(run: Path) -> Results:
    """Read `metrics.jsonl` and `evaluation.json`. Raises InputError when one of them can't be understood."""
    metrics, evaluation = run / "metrics.jsonl", run / "evaluation.json"
    lines = metrics.read_text(encoding="utf-8").split("\n")[:-1] if metrics.is_file() else []
    with _understanding(metrics):
        steps = [_step(in_numbers(json.loads(line))) for line in lines]
    with _understanding(evaluation):
        stored = json.loads(evaluation.read_text(encoding="utf-8")) if evaluation.is_file() else {}
        before, after = (_tasks(stored.get(when)) for when in ("before", "after"))
    return Results(run, tuple(steps), tuple(before), tuple(after))


def mean(values: Iterable[float]) -> float:
    """The mean of at least one value."""
    listed = list(values)
    return sum(listed) / len(listed)


def smoothed(values: Sequence[float | None], window: int) -> list[float | None]:
    """The mean over a centred window at every place, without the places that have no value."""
    half = window // 2
    around = ([v for v in values[max(0, at - half) : at + half + 1] if v is not None] for at in range(len(values)))
    return [mean(near) if near else None for near in around]


@contextlib.contextmanager
def _understanding(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not what a run writes: {type(error).__name__}: {error}") from error


def _step(line: Mapping[str, Any]) -> Step:
    return Step(line["step"], float(line["times"]["step"]), _known(line, "reward"), _known(line, "pass_rate"))


def _known(line: Mapping[str, Any], name: str) -> float | None:
    """A figure that can be drawn: None for what isn't there, or isn't finite."""
    value = line.get(name)
    return None if value is None or not math.isfinite(value) else float(value)


def _tasks(evaluation: Mapping[str, Any] | None) -> list[HeldOutTask]:
    return [] if evaluation is None else [HeldOutTask(**row) for row in evaluation["results"]]
