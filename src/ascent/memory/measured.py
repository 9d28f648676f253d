"""What memory was really taken, phase by phase: the one source of peaks for records, reports and benchmarks.

On an accelerator its allocator counts: bytes of tensors (`allocated`) and what it holds of the device for them
(`reserved`). On CPU it is this process's resident memory above what it was before the model was there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ascent import devices
from ascent.errors import InputError
from ascent.memory.calibration import Measured
from ascent.memory.phases import Phase
from ascent.memory.plan import Plan

FILE = "memory.json"
SCHEMA = "ascent.memory/1"
# phases of the step's clock -> those of a plan that lie in them
PLANNED: Mapping[str, tuple[str, ...]] = {
    "generate": ("sampling",),
    "logps": ("log-probabilities",),
    "update": ("training", "optimizer step"),
    "sync": ("weight update",),
}


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that was taken, in bytes."""

    allocated: int
    reserved: int

    def with_(self, other: Peak) -> Peak:
        """The larger of each."""
        return Peak(max(self.allocated, other.allocated), max(self.reserved, other.reserved))


@dataclass(slots=True)
class Peaks:
    """Peaks of the phases of the step that is going on (`step`), and since the beginning (`run`). `left` is called
    whenever a phase is left."""

    baseline: int = 0
    step: dict[str, Peak] = field(default_factory=dict)
    run: dict[str, Peak] = field(default_factory=dict)

    @classmethod
    def from_now(cls) -> Peaks:
        """What this process's device holds now is not counted on CPU: the interpreter and its packages."""
        found = cls(baseline=devices.use().used_bytes if devices.kind() == "cpu" else 0)
        devices.reset_peak()
        return found

    def left(self, phase: str) -> None:
        """A phase has ended, or is interrupted by another one: note its peak and begin anew."""
        allocated, reserved = devices.peaks()
        peak = Peak(max(0, allocated - self.baseline), max(0, reserved - self.baseline))
        for peaks in (self.step, self.run):
            peaks[phase] = peaks[phase].with_(peak) if phase in peaks else peak
        devices.reset_peak()

    def take_step(self) -> dict[str, Any]:
        """As a line of metrics has it: use of the device now, and the step's peaks by phase; starts the next step."""
        use = asdict(devices.use())
        whole = max(self.step.values(), key=lambda peak: peak.allocated, default=Peak(0, 0))
        reserved = max((peak.reserved for peak in self.step.values()), default=0)
        use |= {"peak_bytes": whole.allocated + self.baseline, "reserved_bytes": reserved + self.baseline}
        use["phases"] = {name: asdict(peak) for name, peak in self.step.items()}
        self.step = {}
        return use


def compared(made: Plan, run: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
    """Each phase's planned and measured bytes, and the share by which the plan is above (+) or below (-).

    An accelerator's allocator doesn't see the context nor groups of ranks: what is compared is the plan less its
    reserve and communication. On CPU packages that are loaded later are resident too, which is what its reserve is for.
    """
    rows = []
    for clock, names in PLANNED.items():
        measured = run.get(clock, {}).get("allocated", 0)
        planned = max((_counted(phase, made.card.kind) for phase in made.phases if phase.name in names), default=0)
        if measured and planned:
            rows.append({
                "phase": names[0],
                "planned": planned,
                "measured": measured,
                "off": planned / measured - 1.0,
            })  # fmt: skip
    return rows


def _counted(phase: Phase, kind: str) -> int:
    return phase.total if kind == "cpu" else _without_reserve(phase).total


def write(
    folder: Path, made: Plan | None, peaks: Mapping[str, Mapping[str, int]], findings: list[dict[str, str]]
) -> None:
    """`memory.json` of a run directory, by rename."""
    content: dict[str, Any] = {"schema": SCHEMA, "plan": made.to_json() if made is not None else None}
    content |= {"measured": {name: dict(peak) for name, peak in peaks.items()}, "findings": findings}
    content["compared"] = compared(made, peaks) if made is not None else []
    beside = folder / f".{FILE}.tmp"
    beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    beside.rename(folder / FILE)


def read(folder: Path) -> dict[str, Any] | None:
    """`memory.json` of a run; None where it has none. Raises InputError for one that can't be read."""
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: can't be read: {error}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise InputError(f"{file}: not a run's memory ({SCHEMA})")
    return content


def measured_phases(folder: Path) -> list[Measured]:
    """What a run's `memory.json` gives a calibration: the phases that were planned and measured."""
    content = read(folder)
    if content is None or not content.get("plan"):
        return []
    phases = {name: Phase(name, terms) for name, terms in content["plan"]["phases"].items()}
    found = []
    for clock, names in PLANNED.items():
        peak = int(content["measured"].get(clock, {}).get("allocated", 0))
        planned = [_without_reserve(phases[name]) for name in names if name in phases]
        if peak and planned:
            found.append(Measured(max(planned, key=lambda phase: phase.total), peak))
    return near_peak(found)


def near_peak(found: Sequence[Measured]) -> list[Measured]:
    """Of one run's phases those that take at least half of what the largest takes: the others never decide whether a
    run fits."""
    most = max((each.peak for each in found), default=0)
    return [each for each in found if 2 * each.peak >= most]


def _without_reserve(phase: Phase) -> Phase:
    return Phase(phase.name, {n: size for n, size in phase.terms.items() if n not in ("reserve", "communication")})
