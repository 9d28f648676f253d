"""What watches the numbers of one training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from ascent.training.batches.kept_passes import StepPasses
from ascent.training.numerics.activations import check_before_float16
from ascent.training.numerics.guard import StepGuard
from ascent.training.numerics.keeping import BadSteps
from ascent.training.numerics.precision import refuse_half_weights, tell_saturation
from ascent.training.numerics.sources import Sources
from ascent.training.records.recorder import Recorder, RunRecorder

_LOOKED_AT = 8  # prompts, for the largest activations


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
    args = trainer.args
    guard = StepGuard(args)
    refuse_half_weights(trainer.model)
    tell_saturation(tell)
    if args.fp16 and not args.fsdp and isinstance(trainer.train_dataset, Dataset):
        rows = [trainer.train_dataset[place] for place in range(min(_LOOKED_AT, len(trainer.train_dataset)))]
        check_before_float16(trainer.model, trainer._prompt_ids(rows), tell)
    trainer.add_callback(guard)
    run = recorder.run.bad_steps if isinstance(recorder, RunRecorder) else Path(args.output_dir) / "bad-steps"
    return Numerics(guard, StepPasses(), Sources(trainer.tell_alarm), BadSteps(run, tell), tell)
