"""Has a run stopped writing? Asked by whoever looks at a run that goes on; a fold over lines can't know it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ascent.alarms.alarm import Alarm
from ascent.alarms.line import Line

LEAST_SECONDS, TIMES, STEPS = 1800.0, 6.0, 20


def stalled(lines: Sequence[Mapping[str, Any]], age: float) -> Alarm | None:
    """An alarm where the last line is older than six median steps, and than half an hour. `lines` are those of
    metrics.jsonl, `age` the seconds since the last was written. None for a run without steps, or that is at its end."""
    if not lines or lines[-1].get("step") == lines[-1].get("total_steps"):
        return None
    seconds = [Line.of(line).number("times.step") for line in lines[-STEPS:]]
    usual = statistics.median([each for each in seconds if each is not None] or [0.0])
    allowed = max(TIMES * usual, LEAST_SECONDS)
    if age <= allowed:
        return None
    step = int(lines[-1]["step"])
    return Alarm(
        "stalled",
        "warn",
        step,
        step,
        f"nothing was written for {age / 60:.0f} minutes; a step takes {usual:.0f} seconds",
        f"more than {allowed / 60:.0f} minutes",
        ("Look at the run's terminal and at servers/*.log: is it evaluating, saving, or waiting for a server?",),
        {"age": age, "usual_step": usual},
    )
