"""Curves of a run as plain numbers: what is drawn, not how. No model's text is among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from ascent.report.page.run_files import RunState, figure, number, whole

Style = Literal["line", "faint", "dots", "bars"]
_MOST_POINTS = 1000  # of a series; longer ones are means of equal stretches


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart; `y` is None where a step has no such figure."""

    name: str
    x: Sequence[int]
    y: Sequence[float | None]
    style: Style = "line"

    @property
    def recorded(self) -> bool:
        """Whether there is anything to draw."""
        return any(value is not None for value in self.y)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart over steps. `unit` "%" means shares, "" plain numbers; `note` says what is shown."""

    id: str
    title: str
    series: Sequence[Series]
    unit: str = ""
    note: str = ""
    stacked: bool = False

    def to_json(self) -> dict[str, Any]:
        """For the page's script."""
        return {
            "id": self.id,
            "unit": self.unit,
            "stacked": self.stacked,
            "series": [{"name": s.name, "x": list(s.x), "y": s.y, "style": s.style} for s in self.series],
        }


@dataclass(frozen=True, slots=True)
class _Plan:
    """A chart's lines: (name, path of the figure in a step's line, factor)."""

    id: str
    title: str
    lines: tuple[tuple[str, tuple[str, ...], float], ...]
    unit: str = ""
    note: str = ""
    stacked: bool = False


def _line(name: str, *path: str, times: float = 1.0) -> tuple[str, tuple[str, ...], float]:
    return name, path, times


_TRAINING = (
    _Plan(
        "reward",
        "Reward",
        (_line("mean", "reward"), _line("spread in a group", "reward_std")),
        note="of a step's completions",
    ),
    _Plan(
        "pass",
        "Pass rate",
        (
            _line("passes its reward's tests", "pass_rate"),
            _line("visible tests", "signals/visible_fraction"),
            _line("hidden tests", "signals/hidden_fraction"),
            _line("held out, greedy", "greedy"),
            _line("held out, sampled", "sampled"),
        ),
        "%",
        "mean share of a program's visible and hidden tests; audits run hidden ones of visible passers alone",
    ),
    _Plan("entropy", "Entropy", (_line("entropy", "entropy"),), "nat", "of the policy, a token"),
    _Plan(
        "length",
        "Length",
        (_line("mean", "completions/mean_length"), _line("longest", "completions/max_length")),
        "tokens",
    ),
    _Plan("kl", "KL from the reference", (_line("KL", "kl"),), "nat", "a token; recorded where beta is above 0"),
    _Plan(
        "mismatch",
        "Sampler against trainer",
        (
            _line("mean", "sampling/sampling_logp_difference/mean"),
            _line("largest", "sampling/sampling_logp_difference/max"),
        ),
        "nat",
        "difference of a token's log-probability",
    ),
    _Plan(
        "signal",
        "Groups without signal",
        (_line("all alike", "groups_alike"), _line("all pass", "groups_pass"), _line("none passes", "groups_fail")),
        "%",
        "nothing is learnt from a group whose rewards are equal",
    ),
    _Plan(
        "hollow",
        "Hollow passes",
        (_line("hollow", "hollow_share"),),
        "%",
        "of the programs that pass all visible tests: those that pass under half of the hidden ones",
    ),
    _Plan("distinct", "Distinct programs", (_line("share", "signals/distinct_share"),), "%", "in a group"),
    _Plan("clipped", "Cut off at the limit", (_line("share", "completions/clipped_ratio"),), "%"),
    _Plan("gradient", "Gradient norm", (_line("norm", "grad_norm"),)),
    _Plan("loss", "Loss", (_line("loss", "loss"),)),
    _Plan("lr", "Learning rate", (_line("learning rate", "learning_rate"),)),
)
_PERFORMANCE = (
    _Plan(
        "times",
        "Where a step's time goes",
        tuple(
            _line(name, "times", key)
            for name, key in (
                ("sampling", "generate"),
                ("waiting for rewards", "reward_exposed"),
                ("log-probabilities", "logps"),
                ("update", "update"),
                ("weights to the engine", "sync"),
                ("other", "other"),
            )
        ),
        "s",
        "click a bar for what made that step slow",
        stacked=True,
    ),
    _Plan(
        "communication",
        "Time in communication",
        (
            _line("gradients", "communication/gradients"),
            _line("gradients, not hidden by computing", "communication/gradients_exposed"),
            _line("gathers", "communication/gathers"),
            _line("weights to servers", "communication/weights"),
        ),
        "s",
        "of process 0; waiting for a slower process counts",
    ),
    _Plan(
        "communication-share",
        "Share of the step in communication",
        (_line("share", "communication/share"),),
        "%",
        "what computing does not hide",
    ),
    _Plan("tokens", "Sampled tokens", (_line("tokens/s", "engine", "tokens_per_second"),), "tokens/s"),
    _Plan(
        "kv",
        "KV cache in use",
        (_line("largest", "engine", "kv_cache_use"), _line("prefix hits", "engine", "prefix_hit_rate")),
        "%",
    ),
    _Plan(
        "requests",
        "Sequences in the engine",
        (_line("running", "engine", "running"), _line("waiting", "engine", "waiting")),
        note="most at once",
    ),
    _Plan(
        "preemptions",
        "Preemptions",
        (_line("preemptions", "engine", "preemptions"),),
        note="sequences thrown out of a full KV cache and sampled again",
    ),
    _Plan(
        "latency",
        "Latency of a completion",
        (
            _line("median", "engine", "latency_p50"),
            _line("95th percentile", "engine", "latency_p95"),
            _line("to the first token", "engine", "time_to_first_token"),
        ),
        "s",
    ),
    _Plan(
        "rewards",
        "Reward time",
        (_line("in the sandbox", "times", "reward_total"), _line("waited for", "times", "reward_exposed")),
        "s",
    ),
    _Plan(
        "memory",
        "Device memory",
        (
            _line("in use", "device", "used_bytes", times=2**-30),
            _line("peak", "device", "peak_bytes", times=2**-30),
            _line("in all", "device", "total_bytes", times=2**-30),
        ),
        "GiB",
    ),
    _Plan("power", "Power", (_line("power", "device", "power_watts"),), "W"),
    _Plan("utilization", "Utilization", (_line("utilization", "device", "utilization", times=0.01),), "%"),
    _Plan(
        "staleness",
        "Staleness",
        (_line("steps", "rollout/staleness"),),
        "steps",
        "how many optimizer steps the sampling weights were behind",
    ),
    _Plan(
        "shapes",
        "New shapes",
        (_line("new", "shapes/new"),),
        note="forward passes of a shape not seen before: on NPU and CUDA kernels are built for each",
    ),
)


def training_charts(run: RunState) -> list[Chart]:
    """Curves of what is learned, those that the run recorded."""
    charts = _charts(_TRAINING, [_with_shares(step) for step in run.steps])
    held_out = _held_out(run)
    return [
        replace(chart, series=[*chart.series, *(s for s in held_out if s.recorded)]) if chart.id == "pass" else chart
        for chart in charts
    ]


def performance_charts(run: RunState) -> list[Chart]:
    """Curves of where time and memory go, those that the run recorded."""
    return _charts(_PERFORMANCE, run.steps)


def unrecorded(run: RunState) -> list[str]:
    """Titles of the charts that have nothing to show."""
    shown = {chart.id for chart in (*training_charts(run), *performance_charts(run))}
    return [plan.title for plan in (*_TRAINING, *_PERFORMANCE) if plan.id not in shown]


def compared(charts: Mapping[str, Sequence[Chart]]) -> list[Chart]:
    """One chart a title with the first line of every run; runs are named by the mapping."""
    by_id: dict[str, Chart] = {}
    for name, of_run in charts.items():
        for chart in of_run:
            if chart.stacked or not chart.series:
                continue
            line = replace(chart.series[0], name=name)
            known = by_id.get(chart.id)
            by_id[chart.id] = replace(chart, series=[*(known.series if known else ()), line])
    return list(by_id.values())


def texts() -> Iterable[str]:
    """Every title, note and name that a chart can show, for translation."""
    for plan in (*_TRAINING, *_PERFORMANCE):
        yield from (plan.title, plan.note, *(name for name, _, _ in plan.lines))


def translated(chart: Chart, say: Callable[[str], str]) -> Chart:
    """The chart in another language."""
    series = [replace(each, name=say(each.name)) for each in chart.series]
    return replace(chart, title=say(chart.title), note=say(chart.note) if chart.note else "", series=series)


def _charts(plans: Iterable[_Plan], steps: Sequence[Mapping[str, Any]]) -> list[Chart]:
    numbers = [whole(step["step"]) for step in steps]
    charts = []
    for plan in plans:
        series = [
            Series(name, *_thinned(numbers, [_scaled(figure(step, *path), factor) for step in steps]))
            for name, path, factor in plan.lines
        ]
        if plan.stacked:
            series = [replace(each, style="bars") for each in series]
        recorded = [each for each in series if each.recorded]
        if recorded:
            charts.append(Chart(plan.id, plan.title, recorded, plan.unit, plan.note, plan.stacked))
    return charts


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else float(f"{value * factor:.5g}")


def _thinned(x: Sequence[int], y: Sequence[float | None]) -> tuple[list[int], list[float | None]]:
    """At most `_MOST_POINTS` points, each the mean of a stretch."""
    wide = -(-len(x) // _MOST_POINTS)
    if wide <= 1:
        return list(x), list(y)
    places = range(0, len(x), wide)
    means: list[float | None] = []
    for place in places:
        there = [value for value in y[place : place + wide] if value is not None]
        means.append(float(f"{sum(there) / len(there):.5g}") if there else None)
    return [x[place] for place in places], means


def _with_shares(step: Mapping[str, Any]) -> Mapping[str, Any]:
    """The step's line with shares made of its counts."""
    shares = {
        "groups_alike": ("signals/groups_without_signal", "signals/groups"),
        "groups_pass": ("signals/groups_all_pass", "signals/groups"),
        "groups_fail": ("signals/groups_all_fail", "signals/groups"),
        "hollow_share": ("signals/hollow", "signals/passers_known"),
    }
    made = {}
    for name, (part, all_of_them) in shares.items():
        some, many = number(step.get(part)), number(step.get(all_of_them))
        if some is not None and many:
            made[name] = some / many
    return {**step, **made}


def _held_out(run: RunState) -> list[Series]:
    """Dots for the held-out pass rates, at the steps at which they were measured."""
    lines = [line for line in run.evaluations if number(line.get("greedy")) is not None]
    x = [whole(line.get("step")) for line in lines]
    return [
        Series(f"held out, {kind}", x, [_scaled(number(line.get(kind)), 1.0) for line in lines], "dots")
        for kind in ("greedy", "sampled")
    ]
