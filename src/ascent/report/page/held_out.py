"""Held-out results as a table: before and after, by family, with intervals, and the tasks that changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ascent.report.page.run_files import RunState, number

_Z = 1.96  # 95 %


@dataclass(frozen=True, slots=True)
class Rate:
    """A pass rate over tasks with its 95 % interval."""

    rate: float
    low: float
    high: float
    tasks: int


@dataclass(frozen=True, slots=True)
class FamilyRow:
    """A family's rates; None where it was not evaluated then. The row of all families has the name ""."""

    family: str
    greedy: tuple[Rate | None, Rate | None]
    sampled: tuple[Rate | None, Rate | None]


@dataclass(frozen=True, slots=True)
class TaskChange:
    """A held-out task's rates before and after; the texts are the task's prompt and its greedy completions."""

    task_id: str
    family: str
    greedy: tuple[float, float]
    sampled: tuple[float, float]
    prompt: str
    completions: tuple[str, str]

    @property
    def gain(self) -> float:
        """How much more of its completions pass, greedy and sampled together, from -2 to 2."""
        return self.greedy[1] - self.greedy[0] + self.sampled[1] - self.sampled[0]


def wilson(rate: float, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a rate of `trials` (at least 1); each task is taken as one trial, as samples of one
    task are alike."""
    centre = (rate + _Z * _Z / (2 * trials)) / (1 + _Z * _Z / trials)
    half = _Z / (1 + _Z * _Z / trials) * math.sqrt(rate * (1 - rate) / trials + _Z * _Z / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def family_rows(run: RunState) -> list[FamilyRow]:
    """All tasks first, then each family where there are several."""
    halves = [_results(run.before), _results(run.after)]
    families = sorted({row["family"] for half in halves for row in half})
    if not families:
        return []
    return [_family("", halves), *(_family(name, halves) for name in families if len(families) > 1)]


def task_changes(run: RunState) -> list[TaskChange]:
    """The tasks that were evaluated before and after, those that lost most first."""
    later = {row["task_id"]: row for row in _results(run.after)}
    changes = [
        TaskChange(
            row["task_id"],
            row["family"],
            (row["greedy"], later[row["task_id"]]["greedy"]),
            (row["sampled"], later[row["task_id"]]["sampled"]),
            row["prompt"],
            (row["completion"], later[row["task_id"]]["completion"]),
        )
        for row in _results(run.before)
        if row["task_id"] in later
    ]
    return sorted(changes, key=lambda change: (change.gain, change.task_id))


def _family(name: str, halves: Sequence[Sequence[Mapping[str, Any]]]) -> FamilyRow:
    rows = [[row for row in half if name in {"", row["family"]}] for half in halves]
    return FamilyRow(
        name,
        (_rate(rows[0], "greedy"), _rate(rows[1], "greedy")),
        (_rate(rows[0], "sampled"), _rate(rows[1], "sampled")),
    )


def _rate(rows: Sequence[Mapping[str, Any]], kind: str) -> Rate | None:
    if not rows:
        return None
    rate = sum(row[kind] for row in rows) / len(rows)
    return Rate(rate, *wilson(min(1.0, max(0.0, rate)), len(rows)), len(rows))


def _results(half: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The rows that hold what is needed."""
    rows = []
    for row in half["results"] if half is not None else ():
        if not isinstance(row, dict) or number(row.get("greedy")) is None or number(row.get("sampled")) is None:
            continue
        texts = {key: str(row.get(key) or "") for key in ("task_id", "family", "prompt", "completion")}
        rows.append({**texts, "greedy": float(row["greedy"]), "sampled": float(row["sampled"])})
    return rows
