"""What watches the numbers of one training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent.training.numerics.guard import StepGuard
from ascent.training.numerics.keeping import BadSteps
from ascent.training.numerics.passes import StepPasses
from ascent.training.numerics.sources import Sources
from ascent.training.records.recorder import Recorder, RunRecorder


@dataclass(frozen=True, slots=True)
class Numerics:
    """`tell` says something to the user, on rank 0."""

    guard: StepGuard
    passes: StepPasses
    sources: Sources
    kept: BadSteps
    tell: Callable[[str], None]


def watch(trainer: Any, recorder: Recorder | None, tell: Callable[[str], None]) -> Numerics:
    """That of a GRPOTrainer whose TRL part is set up. Bad steps are kept in the run directory; without one, in
    `output_dir`. Raises InputError for a setting that can't be."""
    guard = StepGuard(trainer.args)
    trainer.add_callback(guard)
    run = recorder.run.bad_steps if isinstance(recorder, RunRecorder) else Path(trainer.args.output_dir) / "bad-steps"
    return Numerics(guard, StepPasses(), Sources(tell), BadSteps(run, tell), tell)
