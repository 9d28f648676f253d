"""A step's figures as TRL's loggers, and with them trackers, get them: flat, and none that isn't a number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from numbers import Real
from typing import Any

from ascent.training.records.recorder import StepRecord

# what a step's line has beside TRL's own metrics, which TRL logs itself
_OURS = ("signals/", "shapes/", "communication/")


def add(metrics: dict[str, list[float]], record: StepRecord, found: Mapping[str, float], *, trackers: bool) -> None:
    """Add to TRL's metrics what it doesn't know of a step: its times, and for trackers all other figures, with those
    that watchers `found` in it."""
    for name, value in asdict(record.times).items():
        metrics[f"time/{name}"].append(value)
    for name, value in (flat(record) | dict(found)).items() if trackers else ():
        metrics[name].append(value)


def flat(record: StepRecord) -> dict[str, float]:
    """What else metrics.jsonl has of the step: `engine/`, `device/`, `signals/`, `shapes/` and
    `communication/`. Figures inside others
    get the names of both, such as `device/phases/update/allocated`; what isn't a number is left out."""
    found: dict[str, Any] = {name: value for name, value in record.metrics.items() if name.startswith(_OURS)}
    parts: dict[str, Mapping[str, Any]] = {"device": record.device}
    if record.engine is not None:
        parts["engine"] = asdict(record.engine)
    for part, figures in parts.items():
        found |= dict(_leaves(part, figures))
    return {name: float(value) for name, value in found.items() if isinstance(value, Real) and math.isfinite(value)}


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield name, value
        return
    for inner, each in value.items():
        yield from _leaves(f"{name}/{inner}", each)
