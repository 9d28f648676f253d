"""A run as one HTML file that needs nothing else: curves, tables, chosen completions."""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ascent.errors import InputError
from ascent.report.page.app import plotly_script
from ascent.report.page.charts import performance_charts, training_charts, translated
from ascent.report.page.completion_pages import ShownCompletion, from_row, rows_of, with_all_texts
from ascent.report.page.held_out import task_changes
from ascent.report.page.rendering import render
from ascent.report.page.run_files import Problem
from ascent.report.page.run_library import OpenRun, RunLibrary
from ascent.report.page.run_pages import chart_data, run_summary
from ascent.report.page.task_history import task_rows
from ascent.report.page.texts import texts_in

MOST_BYTES = 5_000_000
MOST_COMPLETIONS = 500
_MOST_TASKS = 200
_LARGEST_TEXT = 20_000  # characters of a completion that is exported; a long one would crowd out the others


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written: bytes of the file, completions in it, how many of those chosen had no room, and what of the run
    could not be read."""

    path: Path
    size: int
    completions: int
    left_out: int
    unread: Sequence[Problem]


def export(root: Path, path: Path, *, language: str = "en") -> Exported:
    """Write the run directory `root` as one HTML file of at most `MOST_BYTES`, by rename.

    Raises InputError when `root` is no run, or the file can't be written.
    """
    library = RunLibrary(root)
    if not library.single:
        raise InputError(f"{root}: not a run directory", "--export takes one run, such as runs/NAME.")
    run = library.open(root.resolve().name)
    try:
        run.rollouts.index.refresh()
        content, exported = _page(run, path, language)
    finally:
        library.close()
    beside = path.with_name(f".{path.name}.tmp")
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InputError(f"{path} can't be written: {error.strerror or error}") from error
    return exported


def _page(run: OpenRun, path: Path, language: str) -> tuple[bytes, Exported]:
    """The file's content: the frame first, then as many completions as have room."""
    frame = _frame(run, language)
    head, _, tail = frame.partition("<!--completions-->")
    room = MOST_BYTES - len(frame.encode()) - 200
    chosen = _chosen(run)
    parts: list[str] = []
    for place, shown in enumerate(chosen, start=1):
        part = render("export_completion.html", language, {"shown": shown, "base": None, "number": place})
        size = len(part.encode())
        if size > room:
            continue
        room -= size
        parts.append(part)
    content = (head + "".join(parts) + tail).encode()
    return content, Exported(path, len(content), len(parts), len(chosen) - len(parts), run.problems())


def _frame(run: OpenRun, language: str) -> str:
    state, say = run.state, texts_in(language)
    training = [translated(chart, say) for chart in training_charts(state)]
    performance = [translated(chart, say) for chart in performance_charts(state)]
    history = task_rows(run.rollouts.index)
    script = _script("page.js")
    loader = _script("export.js")
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src {_digest(loader)} {_digest(script)} blob:; base-uri 'none'; form-action 'none'"
    )
    return render(
        "export.html",
        language,
        {
            **run_summary(run),
            "title": state.name,
            "state": state,
            "base": None,
            "problems": run.problems(),
            "progress": None,
            "policy": policy,
            "style": _markup(_script("page.css")),
            "script": _markup(script),
            "loader": _markup(loader),
            "plotly": _markup(_packed_plotly()) if training or performance else "",
            "training": training,
            "training_data": chart_data(training, run.judgement),
            "performance": performance,
            "performance_data": chart_data(performance, run.judgement),
            "tasks": rows_of(history, _MOST_TASKS),
            "all_tasks": len(history),
            "changes": task_changes(state)[:_MOST_TASKS],
            "completions_mark": _markup("<!--completions-->"),
        },
    )


def _chosen(run: OpenRun) -> list[ShownCompletion]:
    """What deserves to be kept: evidence of alarms, what passes visible and fails hidden tests, what tampers, then the
    best, the worst and the newest."""
    index = run.rollouts.index
    evidence = [sample for alarm in run.judgement.alarms for sample in alarm.samples]
    short = f"tokens IS NULL OR tokens < {_LARGEST_TEXT}"
    rows: list[dict[str, Any]] = []
    for sample in evidence[:50]:
        rows += index.rows("SELECT * FROM completions WHERE sample_id = ?", [sample])
    for condition, order, most in (
        ("hollow", "step DESC, sample_id", 100),
        ("outcome IN ('tampered', 'forbidden')", "step DESC, sample_id", 50),
        ("evaluation IS NULL", "reward DESC NULLS LAST, step DESC, sample_id", 50),
        ("evaluation IS NULL", "reward NULLS LAST, step DESC, sample_id", 50),
        ("evaluation IS NOT NULL", "step DESC, sample_id", 50),
        ("evaluation IS NULL", "step DESC, sample_id", MOST_COMPLETIONS),
    ):
        rows += index.rows(f"SELECT * FROM completions WHERE ({condition}) AND ({short}) ORDER BY {order} LIMIT {most}")
    distinct = list({row["sample_id"]: row for row in rows}.values())[:MOST_COMPLETIONS]
    filled = with_all_texts(run.rollouts, distinct)
    return [from_row(run, _shortened(row)) for row in filled if not row.get("unreadable")]


def _shortened(row: dict[str, Any]) -> dict[str, Any]:
    """With texts that a reader of a file can bear; what is cut is told."""
    return {**row, **{name: _cut(row[name]) for name in ("prompt", "completion", "program", "error")}}


def _cut(text: str | None) -> str | None:
    if text is None or len(text) <= _LARGEST_TEXT:
        return text
    return f"{text[:_LARGEST_TEXT]}\n[... {len(text) - _LARGEST_TEXT} more characters]"


def _script(name: str) -> str:
    return resources.files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"


@cache
def _packed_plotly() -> str:
    """Plotly's script (Apache 2 and MIT), packed; the page unpacks it. As it is, it would fill the file alone."""
    return base64.b64encode(gzip.compress(plotly_script().read_bytes(), 9, mtime=0)).decode()


def _markup(text: str) -> Markup:
    return Markup(text)
