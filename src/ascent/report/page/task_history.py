"""How often each task was solved, over the steps: the rows of the heat map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ascent.report.page.rollout_index import RolloutIndex

Kind = Literal["lost", "hollow", "never", "improved", "solved", "mixed"]
KINDS: tuple[Kind, ...] = ("lost", "hollow", "never", "improved", "solved", "mixed")
SORTS = {
    "lost": lambda row: (row.change, row.task_id),
    "gained": lambda row: (-row.change, row.task_id),
    "rate": lambda row: (row.late, row.task_id),
    "hollow": lambda row: (-row.hollow, row.task_id),
    "seen": lambda row: (-row.completions, row.task_id),
    "name": lambda row: row.task_id,
}
_CELLS = 24
_CHANGED = 0.25  # share of a task's completions: half a group of eight is noise, a quarter of three groups is not


@dataclass(frozen=True, slots=True)
class Cell:
    """A task in a range of steps: share of its completions that pass all known tests (None: not sampled)."""

    first: int
    last: int
    rate: float | None
    completions: int
    hollow: int


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task over the run. `early` and `late` are pass rates of the first and the last third of its completions."""

    task_id: str
    cells: tuple[Cell, ...]
    completions: int
    early: float
    late: float
    hollow: int

    @property
    def change(self) -> float:
        """How the pass rate moved, from -1 to 1."""
        return self.late - self.early

    @property
    def kind(self) -> Kind:
        """In a word; the first of `KINDS` that fits."""
        rates = [cell.rate for cell in self.cells if cell.rate is not None]
        if self.change <= -_CHANGED:
            return "lost"
        if self.hollow > self.completions / 20:
            return "hollow"
        if not any(rates):
            return "never"
        if self.change >= _CHANGED:
            return "improved"
        return "solved" if self.late >= 0.9 else "mixed"


def task_rows(index: RolloutIndex, task: str = "") -> list[TaskRow]:
    """Every task that was trained on and judged (or the one named), in no order."""
    condition = "evaluation IS NULL AND solved IS NOT NULL AND task_id IS NOT NULL AND step IS NOT NULL"
    values: Sequence[Any] = [task] if task else []
    if task:
        condition += " AND task_id = ?"
    span = index.rows(f"SELECT min(step) AS first, max(step) AS last FROM completions WHERE {condition}", values)[0]
    if span["first"] is None:
        return []
    width = -(-(span["last"] - span["first"] + 1) // _CELLS)
    cells = index.rows(
        f"""SELECT task_id, (step - ?) // ? AS cell, count(*) AS completions, avg(solved::INT) AS rate,
            count(*) FILTER (hollow) AS hollow
            FROM completions WHERE {condition} GROUP BY ALL""",
        [span["first"], width, *values],
    )
    thirds = index.rows(
        f"""SELECT task_id, count(*) AS completions, count(*) FILTER (hollow) AS hollow,
            avg(solved::INT) FILTER (third = 1) AS early, avg(solved::INT) FILTER (third = 3) AS late,
            avg(solved::INT) AS rate FROM (
                SELECT task_id, solved, hollow, ntile(3) OVER (PARTITION BY task_id ORDER BY step) AS third
                FROM completions WHERE {condition}
            ) GROUP BY task_id""",
        values,
    )
    by_task: dict[str, dict[int, Mapping[str, Any]]] = {}
    for cell in cells:
        by_task.setdefault(cell["task_id"], {})[cell["cell"]] = cell
    number = -(-(span["last"] - span["first"] + 1) // width)
    ranges = [(span["first"] + place * width, span["first"] + (place + 1) * width - 1) for place in range(number)]
    return [
        TaskRow(
            row["task_id"],
            tuple(_cell(by_task[row["task_id"]].get(place), *ranges[place]) for place in range(number)),
            row["completions"],
            row["rate"] if row["early"] is None else row["early"],
            row["rate"] if row["late"] is None else row["late"],
            row["hollow"],
        )
        for row in thirds
    ]


def _cell(found: Mapping[str, Any] | None, first: int, last: int) -> Cell:
    return (
        Cell(first, last, None, 0, 0)
        if found is None
        else Cell(first, last, found["rate"], found["completions"], found["hollow"])
    )
