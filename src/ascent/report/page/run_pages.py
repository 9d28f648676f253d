"""What the pages about a whole run show: overview, performance, one step, evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ascent.report.page.charts import Chart, performance_charts, training_charts, translated, unrecorded
from ascent.report.page.held_out import FamilyRow, family_rows, paired_change, pass_at_k, task_changes
from ascent.report.page.rollout_queries import Rollouts
from ascent.report.page.run_alarms import Judgement
from ascent.report.page.run_files import RunState, figure, number, whole
from ascent.report.page.run_library import OpenRun
from ascent.report.page.slow_steps import read_step, slowest
from ascent.report.page.texts import Texts


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure of the overview: what it is now, and what it was in the beginning."""

    name: str
    now: float | None
    then: float | None = None
    kind: str = "number"  # or "percent", "seconds"


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """A line of evaluations.jsonl; None for what it doesn't have."""

    name: str
    step: int
    greedy: float | None
    sampled: float | None
    pass_rate: float | None
    pass_at_k: Mapping[str, float]
    completions: float | None
    seconds: float | None


def overview(run: OpenRun, say: Texts) -> dict[str, Any]:
    """The run at a glance."""
    state = run.state
    charts = _translated(training_charts(state), say)
    return {
        **run_summary(run),
        "charts": charts,
        "chart_data": chart_data(charts, run.judgement),
        "not_recorded": [say(title) for title in unrecorded(state)],
        "counts": run.rollouts.counts(),
        "slowest": slowest(state.steps, 1),
    }


def run_summary(run: OpenRun) -> dict[str, Any]:
    """What overview and the exported file both begin with."""
    state = run.state
    return {
        "judgement": run.judgement,
        "tiles": tiles(state),
        "families": family_rows(state),
        "seconds": sum(figure(step, "times", "step") or 0.0 for step in state.steps),
        "left": _left(state),
    }


def performance(run: OpenRun, say: Texts) -> dict[str, Any]:
    """Where time and memory go."""
    state = run.state
    charts = _translated(performance_charts(state), say)
    return {
        "charts": charts,
        "chart_data": chart_data(charts, run.judgement),
        "slowest": slowest(state.steps),
    }


def step_page(run: OpenRun, wanted: int) -> dict[str, Any]:
    """One step: its times beside others, and the completions that took longest. `reading` is None where it isn't
    there."""
    state = run.state
    reading = read_step(state.steps, wanted)
    rows: Sequence[dict[str, Any]] = ()
    if reading is not None and number(reading.step.get("generation")) is not None:
        rows = _slowest_completions(run.rollouts, whole(reading.step["generation"]))
    return {
        "wanted": wanted,
        "reading": reading,
        "rows": rows,
        "alarms": [alarm for alarm in run.judgement.alarms if alarm.step == wanted],
    }


def evaluation(run: OpenRun) -> dict[str, Any]:
    """Held-out results."""
    state = run.state
    changes = task_changes(state)
    return {
        "families": family_rows(state),
        "changes": changes,
        "paired": paired_change(changes),
        "lost": sum(change.gain < 0 for change in changes),
        "gained": sum(change.gain > 0 for change in changes),
        "evaluations": [_evaluation(line) for line in state.evaluations],
    }


def tiles(state: RunState) -> list[Tile]:
    """The figures of the overview's head: means of the last and the first steps."""
    steps = state.steps
    made = [
        Tile("reward", *_ends(steps, "reward")),
        Tile("pass rate", *_ends(steps, "pass_rate"), "percent"),
        *_held_out_tile(family_rows(state)),
        Tile("length, tokens", *_ends(steps, "completions/mean_length")),
        Tile("a step", *_ends(steps, "times", "step"), "seconds"),
        Tile("tokens/s", *_ends(steps, "engine", "tokens_per_second")),
    ]
    return [tile for tile in made if tile.now is not None]


def chart_data(charts: Sequence[Chart], judgement: Judgement) -> dict[str, Any]:
    """For the page's script: the charts, and the steps at which alarms were told."""
    marks = sorted({alarm.step for alarm in judgement.alarms if alarm.level != "info"})
    return {"charts": [chart.to_json() for chart in charts], "marks": marks}


def _evaluation(line: Mapping[str, Any]) -> EvaluationRow:
    return EvaluationRow(
        name=str(line["name"]),
        step=whole(line.get("step")),
        greedy=number(line.get("greedy")),
        sampled=number(line.get("sampled")),
        pass_rate=number(line.get("eval_pass_rate")),
        pass_at_k=pass_at_k(line),
        completions=number(line.get("completions")),
        seconds=number(line.get("seconds")),
    )


def _ends(steps: Sequence[Mapping[str, Any]], *path: str) -> tuple[float | None, float | None]:
    """Means of the last and of the first steps that have the figure, a tenth of them, at least one and at most ten."""
    values = [value for step in steps if (value := figure(step, *path)) is not None]
    many = max(1, min(10, len(values) // 10))
    if len(values) <= many:
        return (values[-1] if values else None), None
    return sum(values[-many:]) / many, sum(values[:many]) / many


def _held_out_tile(families: Sequence[FamilyRow]) -> list[Tile]:
    if not families:
        return []
    before, after = families[0].greedy
    now = after or before
    then = before if after else None
    return [Tile("held out, greedy", now.mean if now else None, then.mean if then else None, "percent")]


def _left(state: RunState) -> float | None:
    """Seconds that the remaining steps will take at the pace of the last ones."""
    if state.status != "training" or state.total_steps is None:
        return None
    return max(0, state.total_steps - state.last_step) * state.median_step


def _slowest_completions(rollouts: Rollouts, generation: int) -> list[dict[str, Any]]:
    rows = rollouts.index.rows(
        "SELECT * FROM completions WHERE evaluation IS NULL AND generation = ? "
        "ORDER BY sample_seconds DESC NULLS LAST, sample_id LIMIT 10",
        [generation],
    )
    return rollouts.with_texts(rows)


def _translated(charts: Sequence[Chart], say: Texts) -> list[Chart]:
    return [translated(chart, say) for chart in charts]
