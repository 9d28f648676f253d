"""Corrections of the plan by what was measured: one factor for each kind of thing that is estimated, not counted.

A calibration belongs to a machine and a row of packages. `fit` makes one from runs; it is kept as JSON.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ascent.errors import InputError
from ascent.memory.phases import Phase

# Terms that kernels and allocators decide; all others are counted
ESTIMATED = ("activations", "logits", "samples", "casts")
_ROUNDS = 500
_SHORT = 9.0  # a run that ends for want of memory costs more than memory that nobody uses
_LEAST, _MOST = 0.3, 3.0  # a factor beyond these is a fault of the formula, not of the machine
SCHEMA = "ascent.memory_calibration/1"


@dataclass(frozen=True, slots=True)
class Measured:
    """One phase of one run: what was planned, and the bytes that were measured."""

    planned: Phase
    peak: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """`factors` by term; `spread` is the largest share by which a corrected peak was still off, over and under.
    `device` is the card that it was measured on, by its name."""

    name: str
    factors: Mapping[str, float] = field(default_factory=dict)
    spread: tuple[float, float] = (0.15, 0.15)
    runs: int = 0
    device: str = ""

    def corrected(self, phases: Sequence[Phase]) -> tuple[Phase, ...]:
        """The phases with their terms corrected."""
        return tuple(
            replace(
                each, terms={name: int(size * self.factors.get(name, 1.0)) for name, size in each.terms.items() if size}
            )
            for each in phases
        )

    def errors(self, usual: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        """How far each term may still be off: the spread for those that were corrected."""
        return {name: self.spread if name in self.factors else given for name, given in usual.items()}

    def write(self, path: Path) -> None:
        """Keep it, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        values = {
            "schema": SCHEMA,
            "name": self.name,
            "factors": dict(self.factors),
            "spread": self.spread,
            "runs": self.runs,
            "device": self.device,
        }
        beside = path.with_suffix(".tmp")
        beside.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
        beside.rename(path)


def default_file() -> Path:
    """Where this machine's calibration is looked for."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ascent" / "memory-calibration.json"


def of_this_machine(device: str) -> Calibration | None:
    """What was measured here on a device of that name; None where nothing was. Raises InputError as `read` does."""
    file = default_file()
    found = read(file) if file.is_file() else None
    return found if found is not None and found.device == device else None


def read(path: Path) -> Calibration:
    """A calibration that was kept. Raises InputError for a file that is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: can't be read as a calibration: {error}") from error
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise InputError(f"{path}: not a calibration ({SCHEMA})")
    factors, spread = _factors(values.get("factors")), _spread(values.get("spread"))
    if factors is None or spread is None:
        raise InputError(
            f"{path}: expected factors from {_LEAST} to {_MOST} of {', '.join(ESTIMATED)}, and a spread of two shares",
            "Make it anew from this machine's runs: ascent plan --calibrate RUN...",
        )
    name, device = str(values.get("name", path.name)), str(values.get("device", ""))
    return Calibration(name, factors, spread, int(values.get("runs", 0)), device)


def _factors(given: Any) -> dict[str, float] | None:
    right = isinstance(given, dict) and all(
        name in ESTIMATED and isinstance(factor, int | float) and _LEAST <= factor <= _MOST
        for name, factor in given.items()
    )
    return dict(given) if right else None


def _spread(given: Any) -> tuple[float, float] | None:
    right = (
        isinstance(given, list) and len(given) == 2 and all(isinstance(each, float) and 0 <= each < 1 for each in given)
    )
    return (given[0], given[1]) if right else None


def fit(name: str, measured: Sequence[Measured], device: str = "") -> Calibration:
    """The factors by which planned phases come closest to what was measured.

    Least squares of relative errors, in which a plan that is short counts `_SHORT` times as much as one that is long
    (expectiles: W. Newey and J. Powell, "Asymmetric least squares estimation and testing", 1987). One factor at a time
    until none moves; the sum is convex. Terms that no phase has keep factor 1. Raises InputError without measurements.
    """
    if not measured:
        raise InputError("nothing was measured, so there is nothing to calibrate by")
    used = [term for term in ESTIMATED if any(each.planned.terms.get(term) for each in measured)]
    factors = dict.fromkeys(used, 1.0)
    for _ in range(_ROUNDS):
        moved = 0.0
        for term in used:
            top = bottom = 0.0
            for each in measured:
                share = each.planned.terms.get(term, 0) / each.peak
                rest = sum(
                    size * factors.get(other, 1.0) for other, size in each.planned.terms.items() if other != term
                )
                left = 1.0 - rest / each.peak
                weight = _SHORT if left > share * factors[term] else 1.0
                top += weight * share * left
                bottom += weight * share * share
            found = min(max(top / bottom, _LEAST), _MOST) if bottom else 1.0
            moved, factors[term] = max(moved, abs(found - factors[term])), found
        if moved < 1e-6:
            break
    corrected = Calibration(name, factors).corrected([each.planned for each in measured])
    off = [phase.total / each.peak - 1.0 for phase, each in zip(corrected, measured, strict=True)]
    over, under = max(0.02, *off), max(0.02, *(-each for each in off))
    return Calibration(name, factors, (_up(over), _up(under)), len(measured), device)


def _up(share: float) -> float:
    return math.ceil(share * 100) / 100
