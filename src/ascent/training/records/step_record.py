"""A step's record, from what the trainer knows at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ascent.training.records.recorder import StepRecord
from ascent.training.records.signals.merged import Signals
from ascent.types import EngineStats, StepTimes


def step_record(
    state: Any,
    generation: int | None,
    metrics: Mapping[str, float | None],
    signals: Signals | None,
    times: StepTimes,
    engine: EngineStats | None,
    device: Mapping[str, Any],
) -> StepRecord:
    """The record of the step that has just ended. `state` is the Trainer's; `signals` are None where nothing was
    sampled; `device` is what MemoryRecord gives."""
    return StepRecord(
        step=state.global_step,
        total_steps=state.max_steps,
        epoch=float(state.epoch or 0.0),
        generation=generation,
        metrics={**metrics, **(signals.figures if signals is not None else {})},
        times=times,
        engine=engine,
        device=device,
        signal_groups=None if signals is None else signals.groups,
    )
