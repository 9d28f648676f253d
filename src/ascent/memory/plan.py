"""Does it fit? `plan(model, device, settings)` says so, phase by phase, before anything is started.

Nothing here needs torch or an accelerator. An example:

    from ascent.memory import plan, Settings
    made = plan("Qwen/Qwen2.5-7B-Instruct", "910B3")
    made.verdict, made.peak.name, made.peak.largest     # ("no", "optimizer step", "optimizer")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ascent.errors import InputError
from ascent.memory.calibration import Calibration
from ascent.memory.cards import Card, card
from ascent.memory.config_json import read_model
from ascent.memory.engine_memory import EngineMemory, engine_memory
from ascent.memory.model import Model
from ascent.memory.phases import ERRORS, Phase, engine_phases, trainer_phases
from ascent.memory.settings import Settings, check

Verdict = Literal["fits", "close", "no"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What each phase takes of one device that trains (`phases`) and of one that only samples (`server_phases`).

    `calibration` is what its terms were corrected by.
    """

    model: Model
    card: Card
    settings: Settings
    phases: tuple[Phase, ...]
    server_phases: tuple[Phase, ...]
    engine: EngineMemory
    calibration: Calibration | None = None

    @property
    def errors(self) -> Mapping[str, tuple[float, float]]:
        """How far each term may be off, as (lower, upper) shares of it."""
        return ERRORS if self.calibration is None else self.calibration.errors(ERRORS)

    @property
    def peak(self) -> Phase:
        """The phase that takes most, of whichever device."""
        return max((*self.phases, *self.server_phases), key=lambda phase: phase.total)

    @property
    def trainer_peak(self) -> Phase:
        """The phase that takes most of a device that trains."""
        return max(self.phases, key=lambda phase: phase.total)

    @property
    def lower(self) -> int:
        """Bytes that it takes at least, as far as errors are known."""
        return max(phase.bound(0, self.errors) for phase in (*self.phases, *self.server_phases))

    @property
    def upper(self) -> int:
        """Bytes that it takes at most."""
        return max(phase.bound(1, self.errors) for phase in (*self.phases, *self.server_phases))

    @property
    def verdict(self) -> Verdict:
        """`fits`: also at the upper end; `no`: not even at the lower one; `close`: between them."""
        if self.lower > self.card.usable or self.engine.short:
            return "no"
        return "fits" if self.upper <= self.card.usable else "close"

    def phase(self, name: str) -> Phase:
        """The phase of that name on a device that trains."""
        return next(phase for phase in self.phases if phase.name == name)

    def changed(self, settings: Settings) -> Plan:
        """The plan of other settings on the same card. Raises InputError as `plan` does."""
        return plan(self.model, self.card, settings, calibration=self.calibration)

    def to_json(self) -> dict[str, Any]:
        """As `memory.json` and `ascent plan --json` have it; sizes in bytes."""
        return {
            "model": self.model.name,
            "parameters": self.model.parameters,
            "active_parameters": self.model.active_parameters,
            "device": self.card.name,
            "kind": self.card.kind,
            "usable": self.card.usable,
            "settings": asdict(self.settings),
            "verdict": self.verdict,
            "lower": self.lower,
            "upper": self.upper,
            "peak": {"phase": self.peak.name, "bytes": self.peak.total, "largest": self.peak.largest},
            "phases": {phase.name: dict(phase.terms) for phase in self.phases},
            "server_phases": {phase.name: dict(phase.terms) for phase in self.server_phases},
            "engine": asdict(self.engine),
            "calibrated": "" if self.calibration is None else self.calibration.name,
        }


def plan(
    model: Model | str,
    device: Card | str,
    settings: Settings | None = None,
    *,
    calibration: Calibration | None = None,
) -> Plan:
    """The plan of a training. `model` is one's dimensions, a folder, a hub id in the local cache or a known model;
    `device` a card or its name.

    Raises InputError for a model or card that isn't known, a card that can't train, and settings that contradict each
    other.
    """
    settings = settings or Settings()
    model = read_model(model) if isinstance(model, str) else model
    device = card(device) if isinstance(device, str) else device
    check(settings, model)
    if not device.trains:
        raise InputError(f"{device.name}: it can't train: {device.why}", "Train on another card.")
    if not device.bf16 and device.kind != "cpu" and (settings.trained.autocast or settings.trained.dtype == "bfloat16"):
        raise InputError(
            f"{device.name} doesn't compute in bfloat16",
            "Set model.dtype=float32 trainer.bf16=false trainer.fp16=true.",
        )
    phases, servers = trainer_phases(model, device, settings), engine_phases(model, device, settings)
    if calibration is not None:
        phases, servers = calibration.corrected(phases), calibration.corrected(servers)
    if (cap := settings.trained.cap) is not None and cap > device.usable:
        raise InputError(f"memory.trainer_gb={cap / 2**30:g}: {device.name} has {device.usable / 2**30:.1f} GiB")
    return Plan(model, device, settings, phases, servers, engine_memory(model, device, settings), calibration)
