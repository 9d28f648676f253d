"""What the pages about completions show: the list, a group, one completion, a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ascent.report.page.difference import DiffLine, difference
from ascent.report.page.highlighting import coloured
from ascent.report.page.rollout_filter import FIELDS, OUTCOMES, SORTS, Filter, whole_number
from ascent.report.page.rollout_queries import A_PAGE, Rollouts
from ascent.report.page.run_files import RunState
from ascent.report.page.run_library import OpenRun
from ascent.report.page.shown_tasks import JudgedTest, ShownTask, judged_tests, task_at
from ascent.report.page.task_history import KINDS, TaskRow, task_rows
from ascent.report.page.task_history import SORTS as TASK_SORTS
from ascent.report.page.token_strip import MOST_TOKENS, ShownToken, shown_tokens

TEXTS = ("prompt", "completion", "program", "error")  # what can be shown whole
_ALL = (
    *TEXTS,
    "completion_ids",
    "logps",
    "trainer_logps",
    "weight_spans",
    "visible_tests",
    "outcomes",
    "audit_outcomes",
    "rewards",
    "parts",
    "sandbox_seconds",
    "sandbox_level",
    "dropped_why",
    "signal",
)
_MOST_GROUP = 64  # programs on one page
_MATRIX = 32  # completions beside a task's tests


class NotThereError(LookupError):
    """What an address asks for isn't in the run; the message says what."""


@dataclass(frozen=True, slots=True)
class ShownCompletion:
    """One completion with everything that was recorded of it."""

    row: Mapping[str, Any]
    task: ShownTask | None
    tests: Sequence[JudgedTest]
    program: Markup
    program_left_out: int
    tokens: Sequence[ShownToken]
    tokens_left_out: int

    @property
    def staleness(self) -> int | None:
        """Optimizer steps that the sampling weights were behind; None in evaluations."""
        if self.row["evaluation"] is not None or self.row["weight_version"] is None or self.row["step"] is None:
            return None
        return self.row["step"] - 1 - self.row["weight_version"]

    def count(self, *, visible: bool) -> tuple[int, int] | None:
        """(passed, run) of the visible or the hidden tests; None where that isn't known."""
        run = [test for test in self.tests if test.visible is visible and test.outcome is not None]
        return (sum(test.outcome == "passed" for test in run), len(run)) if run else None


@dataclass(frozen=True, slots=True)
class Fold:
    """A program of a group, and the completions that hold it."""

    rows: Sequence[Mapping[str, Any]]
    program: Markup
    left_out: int


def rollouts_page(run: OpenRun, query: Mapping[str, str]) -> dict[str, Any]:
    """A page of the list that an address asks for."""
    wanted = Filter.from_query(query)
    page = max(1, min(1_000_000, whole_number(query.get("page")) or 1))
    listing = run.rollouts.listing(wanted, (page - 1) * A_PAGE)
    return {
        "filter": wanted,
        "listing": listing,
        "rows": run.rollouts.with_texts(listing.rows),
        "page": page,
        "pages": max(1, -(-listing.total // A_PAGE)),
        "names": run.rollouts.names(),
        "fields": list(FIELDS),
        "outcomes": list(OUTCOMES),
        "sorts": list(SORTS),
    }


def completion_page(run: OpenRun, query: Mapping[str, str]) -> dict[str, Any]:
    """One completion, with the ones before and after it in the list it was opened from (or in its group)."""
    shown = shown_completion(run, query.get("id", ""))
    at = whole_number(query.get("at"))
    wanted = Filter.from_query(query)
    if at is None:
        wanted, at = Filter(group=shown.row["group_id"], of="all", sort="oldest"), shown.row["place"] or 0
    place, near = run.rollouts.neighbours(wanted, shown.row["sample_id"], at)
    ids = [row["sample_id"] for row in near]
    here = ids.index(shown.row["sample_id"]) if place is not None else 0
    return {
        "shown": shown,
        "filter": wanted,
        "place": place,
        "previous": ids[here - 1] if place is not None and here > 0 else None,
        "next": ids[here + 1] if place is not None and here + 1 < len(ids) else None,
        "most_tokens": MOST_TOKENS,
    }


def shown_completion(run: OpenRun, sample_id: str) -> ShownCompletion:
    """A completion by its id. Raises NotThereError."""
    found = run.rollouts.one(sample_id)
    if found is None:
        raise NotThereError(f"completion {sample_id}")
    return from_row(run, run.rollouts.with_texts([found], _ALL)[0])


def from_row(run: OpenRun, row: dict[str, Any]) -> ShownCompletion:
    """A completion from its row with all texts. Raises NotThereError where its file can't be read."""
    if row.get("unreadable"):
        raise NotThereError(f"completion {row['sample_id']}: {row['unreadable']}")
    task = task_at(run.state.tasks, row["task_id"], row["step"] or 0)
    program, left_out = coloured(row["program"] or "", task.language if task else "python")
    tokens = shown_tokens(row, run.tokenizers.get())
    return ShownCompletion(
        row={**row, "rewards": dict(row["rewards"] or ()), "parts": dict(row["parts"] or ())},
        task=task,
        tests=judged_tests(task, row),
        program=program,
        program_left_out=left_out,
        tokens=tokens,
        tokens_left_out=max(0, len(row["completion_ids"] or ()) - len(tokens)),
    )


def text_of(run: OpenRun, sample_id: str, name: str) -> str:
    """One text of a completion, whole. Raises NotThereError."""
    found = run.rollouts.one(sample_id)
    if found is None or name not in TEXTS:
        raise NotThereError(f"{name} of completion {sample_id}")
    row = run.rollouts.with_texts([found], (name,))[0]
    if row.get("unreadable"):
        raise NotThereError(f"completion {sample_id}: {row['unreadable']}")
    return row[name] or ""


def group_page(run: OpenRun, query: Mapping[str, str]) -> dict[str, Any]:
    """A group's completions side by side; equal programs are one. `first` and `second` choose two to compare."""
    group_id = query.get("id", "")
    found = run.rollouts.group(group_id)
    if not found:
        raise NotThereError(f"group {group_id}")
    rows = run.rollouts.with_texts(found, ("prompt", "program", "completion", "outcomes"))
    by_program: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_program.setdefault(row["program"] or row["completion"] or "", []).append(row)
    task = task_at(run.state.tasks, rows[0]["task_id"], rows[0]["step"] or 0)
    language = task.language if task else "python"
    ordered = sorted(by_program.items(), key=lambda item: -(item[1][0]["reward"] or 0.0))
    programs = [program for program, _ in ordered]
    chosen = [whole_number(query.get(name)) for name in ("first", "second")]
    lines: list[DiffLine] | None = None
    if all(place is not None and 1 <= place <= len(programs) for place in chosen):
        lines = difference(*(programs[(place or 1) - 1] for place in chosen))
    return {
        "group_id": group_id,
        "rows": rows,
        "task_id": rows[0]["task_id"],
        "prompt": rows[0]["prompt"] or "",
        "folds": [Fold(of, *coloured(program, language)) for program, of in ordered[:_MOST_GROUP]],
        "more": max(0, len(ordered) - _MOST_GROUP),
        "difference": lines,
        "chosen": chosen,
        "rewards": [row["reward"] for row in rows if row["reward"] is not None],
    }


def tasks_page(run: OpenRun, query: Mapping[str, str]) -> dict[str, Any]:
    """Every task's pass rate over the steps."""
    rows = task_rows(run.rollouts.index)
    kinds = {kind: sum(row.kind == kind for row in rows) for kind in KINDS}
    kind, sort = query.get("kind", ""), query.get("sort", "")
    text = query.get("q", "")[:200]
    chosen = [row for row in rows if (not kind or row.kind == kind) and text.lower() in row.task_id.lower()]
    page = max(1, whole_number(query.get("page")) or 1)
    chosen.sort(key=TASK_SORTS.get(sort, TASK_SORTS["lost"]))
    return {
        "rows": chosen[(page - 1) * A_PAGE : page * A_PAGE],
        "total": len(chosen),
        "all": len(rows),
        "kinds": kinds,
        "kind": kind,
        "sort": sort if sort in TASK_SORTS else "lost",
        "sorts": list(TASK_SORTS),
        "q": text,
        "page": page,
        "pages": max(1, -(-len(chosen) // A_PAGE)),
    }


def task_page(run: OpenRun, query: Mapping[str, str]) -> dict[str, Any]:
    """One task: what it asks, how it went, and which tests its last completions fail."""
    task_id = query.get("id", "")
    state = run.state
    rows = task_rows(run.rollouts.index, task_id)
    wanted = Filter(task=task_id, of="all")
    listing = run.rollouts.listing(wanted, most=_MATRIX)
    if not listing.rows and task_id not in state.tasks:
        raise NotThereError(f"task {task_id}")
    columns = ("prompt", "program", "completion", "error", "outcomes", "audit_outcomes", "visible_tests")
    recent = run.rollouts.with_texts(listing.rows, columns)
    versions = state.tasks.get(task_id) or ()
    return {
        "task_id": task_id,
        "task": versions[-1] if versions else None,
        "history": rows[0] if rows else None,
        "prompt": versions[-1].prompt if versions else next((row["prompt"] for row in recent if row["prompt"]), ""),
        "rows": recent,
        "total": listing.total,
        "matrix": _matrix(state, recent),
        "filter": wanted,
    }


def _matrix(state: RunState, rows: Sequence[Mapping[str, Any]]) -> list[tuple[JudgedTest, list[str | None]]]:
    """Each test of a task with its outcome in every row."""
    judged = [judged_tests(task_at(state.tasks, row["task_id"], row["step"] or 0), row) for row in rows]
    places = max(judged, key=len, default=[])
    return [
        (test, [tests[place].outcome if place < len(tests) else None for tests in judged])
        for place, test in enumerate(places)
    ]


def rows_of(history: Sequence[TaskRow], most: int) -> list[TaskRow]:
    """The tasks that lost most, for a page without a choice."""
    return sorted(history, key=TASK_SORTS["lost"])[:most]


def with_all_texts(rollouts: Rollouts, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with everything that a completion's page shows."""
    return rollouts.with_texts(rows, _ALL)
