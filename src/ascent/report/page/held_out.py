"""Held-out results as a table: before and after, by family, with intervals, and the tasks that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ascent.report.page.run_files import RunState, number
from ascent.report.paired import Difference, difference
from ascent.report.pass_rates import Rate, rate


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


def paired_change(changes: Sequence[TaskChange]) -> dict[str, Difference]:
    """How far the rates moved, task by task: "greedy" and "sampled"; empty without a task that was evaluated twice."""
    if not changes:
        return {}
    return {
        "greedy": difference([each.greedy[1] for each in changes], [each.greedy[0] for each in changes]),
        "sampled": difference([each.sampled[1] for each in changes], [each.sampled[0] for each in changes]),
    }


def paired_runs(first: RunState, second: RunState) -> tuple[Difference, int] | None:
    """The second run's last sampled rates minus the first one's, over the tasks that both evaluated last, and how many
    these are; None where there is none."""
    ours, theirs = _last_results(second), _last_results(first)
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return None
    return difference([ours[task] for task in shared], [theirs[task] for task in shared]), len(shared)


def pass_at_k(line: Mapping[str, Any]) -> dict[str, float]:
    """The figures `pass@1`, `pass@5`, ... in a line of evaluations.jsonl."""
    return {name: value for name in line if name.startswith("pass@") and (value := number(line[name])) is not None}


def _last_results(run: RunState) -> dict[str, float]:
    """Sampled rates by task of the last evaluation whose line has them."""
    for line in reversed(run.evaluations):
        results = line.get("results")
        if isinstance(results, Mapping):
            rates = {task: number(of.get("sampled")) for task, of in results.items() if isinstance(of, Mapping)}
            return {task: min(1.0, max(0.0, value)) for task, value in rates.items() if value is not None}
    return {}


def _family(name: str, halves: Sequence[Sequence[Mapping[str, Any]]]) -> FamilyRow:
    rows = [[row for row in half if name in {"", row["family"]}] for half in halves]
    return FamilyRow(
        name,
        (_rate(rows[0], "greedy"), _rate(rows[1], "greedy")),
        (_rate(rows[0], "sampled"), _rate(rows[1], "sampled")),
    )


def _rate(rows: Sequence[Mapping[str, Any]], kind: str) -> Rate | None:
    return rate([row[kind] for row in rows]) if rows else None


def _results(half: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The rows that hold what is needed."""
    rows = []
    for row in half["results"] if half is not None else ():
        if not isinstance(row, dict) or number(row.get("greedy")) is None or number(row.get("sampled")) is None:
            continue
        texts = {key: str(row.get(key) or "") for key in ("task_id", "family", "prompt", "completion")}
        rates = {kind: min(1.0, max(0.0, float(row[kind]))) for kind in ("greedy", "sampled")}
        rows.append({**texts, **rates})
    return rows
