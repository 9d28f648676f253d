"""`ascent bench`'s figures for people: a table, and what it shows in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ascent.bench.figures import Bench, Measured, mean_power, spread
from ascent.bench.stages import STAGES
from ascent.memory.picture import size
from ascent.rollout.engines.token_times import Latency

_HEAD = (
    "",
    "sequences/s",
    "tokens/s",
    "first token",
    "between tokens",
    "KV cache",
    "memory",
    "power",
)


@dataclass(frozen=True, slots=True)
class Report:
    """What the command tells."""

    found: Bench

    @property
    def good(self) -> bool:
        """Whether all that was asked for was measured."""
        return self.found.good

    def to_text(self) -> str:
        """See `to_text`."""
        return to_text(self.found)

    def to_json(self) -> dict[str, Any]:
        """See `Bench.to_json`."""
        return self.found.to_json()


def to_text(found: Bench) -> str:
    """The table with what was measured, what the stages are, the bound, and notes."""
    lines = [f"{found.model} on {found.device}, N = {found.rows}", _workload(found), ""]
    lines += _aligned([_HEAD, *(_row(found, stage) for stage in found.stages)])
    lines.append("  latencies: median, and what 95 of 100 don't exceed")
    lines += ["", *(f"  {stage.stage}: {STAGES[stage.stage]}{_settings(stage)}" for stage in found.stages)]
    if found.of_the_bound is not None:
        lines += ["", *_bound(found)]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(lines)


def against(found: Bench, stage: str) -> str:
    """ " (2.31 x static)", where both were measured."""
    base = next((each for each in ("static", "padded", "dynamic") if found.measured(each)), None)
    times = None if base is None or base == stage else found.times(stage, base)
    return "" if times is None else f" ({times:.2f} x {base})"


def _workload(found: Bench) -> str:
    lengths = spread(found.sampled.lengths)
    return (
        f"{len(found.sampled.lengths)} completions of {found.sampled.groups} prompts, {lengths['min']} to "
        f"{lengths['max']} tokens (median {lengths['median']}), {found.sampled.source}"
    )


def _row(found: Bench, stage: Measured) -> tuple[str, ...]:
    if stage.failed is not None:
        return (stage.stage, f"failed: {' '.join(stage.failed.split())[:160]}")
    if stage.same_as is not None:
        return (stage.stage, f"as {stage.same_as}: the same settings")
    power = mean_power(stage)
    return (
        stage.stage,
        f"{len(found.sampled.lengths) / stage.seconds:.2f}",
        f"{found.sampled.tokens / stage.seconds:.0f}{against(found, stage.stage)}",
        _latency(stage.middle("first_token")),
        _latency(stage.middle("between_tokens")),
        f"{max(each.kv_cache_use for each in stage.repeats):.0%}",
        f"{stage.memory_share:.1%} ({size(max(each.peak_bytes for each in stage.repeats))})",
        "not reported" if power is None else f"{power:.0f} W",
    )


def _latency(found: Latency | None) -> str:
    if found is None:
        return "-"
    if found.p95 < 1:
        return f"{1000 * found.median:.0f}, {1000 * found.p95:.0f} ms"
    return f"{found.median:.2f}, {found.p95:.2f} s"


def _settings(stage: Measured) -> str:
    changed = ", ".join(f"{name}={value}" for name, value in stage.settings.items())
    return f" [{changed}]" if changed else ""


def _bound(found: Bench) -> list[str]:
    near, dynamic = found.of_the_bound, found.measured("dynamic")
    assert near is not None
    assert dynamic is not None
    steps = ", ".join(f"{rows}: {1000 * seconds:.1f}" for rows, seconds in near.cost.steps.items())
    return [
        f"the bound of dynamic batching, N at a time: {near.bound.seconds:.2f} s in any order, "
        f"{near.bound.in_order:.2f} s in this one; it took {dynamic.seconds:.2f} s: {near.reached:.0%} of "
        "the bound's speed",
        f"  from the lengths, and from what a step costs, in ms by how many sequences it has: {steps}; "
        f"{1000 * near.cost.prompt_token:.3f} ms more for each token of a prompt",
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they need to be; a row may end in one text that takes the others' place."""
    full = [row for row in rows if len(row) == len(_HEAD)]
    widths = [max(len(row[column]) for row in full) for column in range(len(_HEAD))]
    widths[0] = max(len(row[0]) for row in rows)
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows
    ]
