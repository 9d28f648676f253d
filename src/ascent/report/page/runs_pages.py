"""What the pages about several runs show: the list, and runs beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ascent.report.page.charts import compared, performance_charts, training_charts, translated
from ascent.report.page.held_out import family_rows, paired_runs
from ascent.report.page.run_alarms import Judgement, told_alarms
from ascent.report.page.run_files import RunState
from ascent.report.page.run_library import NoSuchRunError, OpenRun, RunLibrary
from ascent.report.page.run_pages import tiles
from ascent.report.page.texts import Texts

MOST_COMPARED = 6
_MOST_LISTED = 200
_MOST_JUDGED = 5000  # steps of all runs: a second; of older runs the list says what they told themselves


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in the list."""

    state: RunState
    judgement: Judgement
    figures: Mapping[str, Any]


def runs_page(library: RunLibrary) -> dict[str, Any]:
    """Every run of the folder."""
    names = list(library.paths())
    rows: list[RunRow] = []
    steps = 0
    for name in names[:_MOST_LISTED]:
        try:
            run = library.open(name)
        except NoSuchRunError:
            continue  # removed since it was listed
        steps += len(run.state.steps)
        rows.append(_row(run, judged=steps <= _MOST_JUDGED))
    return {"rows": rows, "more": len(names) - len(names[:_MOST_LISTED])}


def compare_page(library: RunLibrary, names: Sequence[str], say: Texts) -> dict[str, Any]:
    """Runs beside each other: figures, curves, and the settings in which they differ."""
    chosen: dict[str, RunState] = {}
    for name in dict.fromkeys(names):
        if len(chosen) < MOST_COMPARED:
            chosen[name] = library.open(name).state
    first = next(iter(chosen.values()), None)
    charts = compared({name: [*training_charts(state), *performance_charts(state)] for name, state in chosen.items()})
    shown = [translated(chart, lambda text: text if text in chosen else say(text)) for chart in charts]
    return {
        "states": chosen,
        "tiles": {name: {tile.name: tile for tile in tiles(state)} for name, state in chosen.items()},
        "families": {name: family_rows(state)[:1] for name, state in chosen.items()},
        "paired": {
            name: paired_runs(first, state)
            for name, state in chosen.items()
            if first is not None and state is not first
        },
        "settings": _differences(chosen),
        "charts": shown,
        "chart_data": {"charts": [chart.to_json() for chart in shown], "marks": []},
    }


def _row(run: OpenRun, *, judged: bool) -> RunRow:
    state = run.state
    judgement = run.judgement if judged else told_alarms(state)
    return RunRow(state, judgement, {tile.name: tile for tile in tiles(state)})


def _differences(states: Mapping[str, RunState]) -> list[tuple[str, list[str]]]:
    """The settings in which the runs differ, each with its value in every run."""
    flat = [dict(_flat(state.config)) for state in states.values()]
    keys = sorted({key for each in flat for key in each})
    rows = [(key, [each.get(key, "") for each in flat]) for key in keys]
    return [row for row in rows if len(set(row[1])) > 1]


def _flat(section: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in section.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((f"{prefix}{key}", str(value)))
    return found
