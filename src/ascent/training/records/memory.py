"""The memory of a run: each step's peaks by phase, what they show, and `memory.json` with the plan beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ascent import devices
from ascent.memory import measured
from ascent.memory.measured import Peak, Peaks
from ascent.memory.plan import Plan
from ascent.memory.pressure import Pressure
from ascent.tracking.run_directory import RunDirectory
from ascent.training.records.recorder import StepRecord
from ascent.types import EngineStats


class MemoryRecord:
    """Counts from its making on. The step's clock tells it which phase was left."""

    def __init__(self, *, sleeps: bool) -> None:
        """`sleeps`: an engine in this process gives its memory back."""
        self._peaks = Peaks.from_now()
        self._pressure = Pressure(devices.kind(), sleeps)

    def left(self, phase: str) -> None:
        """See StepClock."""
        self._peaks.left(phase)

    def step(self, engine: EngineStats | None) -> dict[str, Any]:
        """A step has ended: the device's part of its record."""
        use = self._peaks.take_step()
        found = self._pressure.step(
            allocated=use["peak_bytes"],
            reserved=use["reserved_bytes"],
            total=use["total_bytes"],
            preemptions=0 if engine is None else engine.preemptions,
            cache_use=None if engine is None else engine.kv_cache_use,
        )
        return use | {"findings": [each.to_json() for each in found]}


@dataclass(slots=True)
class MemoryFile:
    """Keeps `memory.json` of a run, as rank 0 sees it: a watcher of the recorder."""

    run: RunDirectory
    plan: Plan | None
    _peaks: dict[str, dict[str, int]] = field(default_factory=dict)
    _findings: list[dict[str, str]] = field(default_factory=list)

    def step(self, record: StepRecord) -> None:
        """Write it anew where the step showed anything new."""
        before = {name: dict(peak) for name, peak in self._peaks.items()}
        for name, peak in record.device.get("phases", {}).items():
            known = self._peaks.get(name, {"allocated": 0, "reserved": 0})
            larger = Peak(**known).with_(Peak(**peak))
            self._peaks[name] = {"allocated": larger.allocated, "reserved": larger.reserved}
        new = record.device.get("findings", [])
        self._findings += new
        if new or self._peaks != before:
            measured.write(self.run.path, self.plan, self._peaks, self._findings)
