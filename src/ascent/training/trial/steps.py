"""Ends a trial's training: after so many steps, when its time is over, or when asked to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from ascent import devices
from ascent.training.launch.stop_file import stop_file
from ascent.training.step.ranks import Ranks
from ascent.training.trial.asked import Trial
from ascent.training.trial.found import FoundFile


class TrialSteps(TrainerCallback):
    """Counts the steps, times the optimizer in each, and ends the training. All processes agree.

    Where a worst batch is wanted, `prepare_worst` is called once the run's own steps are made and recorded; the
    training then goes on for the one step that it prepares.
    """

    def __init__(self, trial: Trial, ranks: Ranks, file: FoundFile, prepare_worst: Callable[[], None]) -> None:
        self._trial, self._ranks, self._file, self._prepare = trial, ranks, file, prepare_worst
        self._began_step = self._began_optimizer = time.monotonic()
        self._stop_file = stop_file()
        self._tries_worst = self._prepared = False
        self.asked_to_stop = False

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """How many steps the run has is known from here on."""
        self._file.take(total_steps=state.max_steps)

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The time of a step runs."""
        self._began_step = time.monotonic()

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The optimizer begins."""
        devices.synchronize()
        self._began_optimizer = time.monotonic()

    def on_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The optimizer has ended."""
        devices.synchronize()
        if not self._tries_worst:
            seconds = time.monotonic() - self._began_optimizer
            self._file.take(optimizer=[*self._file.found.optimizer, seconds])

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:
        """Go on, try the worst batch, or end."""
        if self._tries_worst:
            control.should_training_stop = True
            return control
        self._file.take(steps=state.global_step)
        left = state.max_steps - state.global_step - int(self._trial.worst)
        stop = self._ranks.any_rank(self._stop_file is not None and self._stop_file.exists())
        if not stop and not self._ranks.any_rank(self._enough(state.global_step, left)):
            return control
        self.asked_to_stop = stop
        if self._trial.worst and not stop and state.global_step < state.max_steps:
            self._tries_worst = True
        else:
            control.should_training_stop = True
        return control

    def after_step(self) -> None:
        """See GRPOTrainer."""
        if self._tries_worst and not self._prepared:
            self._prepared = True
            self._prepare()

    def _enough(self, step: int, left: int) -> bool:
        if step >= self._trial.steps or left <= 0:
            return True
        until, last = self._trial.until, time.monotonic() - self._began_step
        return until is not None and time.time() + last > until
