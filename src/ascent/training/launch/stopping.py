"""Stop at the end of a step, with a checkpoint, when asked by a signal, a stop file or an alarm."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from ascent.training.launch.stop_file import stop_file
from ascent.training.launch.stop_signals import listening
from ascent.training.step.ranks import Ranks


class StopAtStepEnd(TrainerCallback):
    """Ends training after the step in which a stop was asked for. All processes agree, so none is left waiting."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._file = stop_file()
        self._asked = False
        self.stopped = False
        self.why = ""  # what asked for it, where that isn't a person

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:
        """Save and stop when any process was asked to."""
        asked = self._asked or (self._file is not None and self._file.exists())
        if self._ranks.any_rank(asked):
            self.stopped = control.should_save = control.should_training_stop = True
        return control

    def listening(self) -> AbstractContextManager[None]:
        """Take signals as requests to stop; a second SIGINT or SIGTERM stops at once, without a checkpoint."""
        return listening(self.ask, _stop_now)

    def ask(self, why: str = "") -> None:
        """Stop after the step that ends next. One process's asking is enough."""
        self._asked, self.why = True, why


def _stop_now() -> None:
    raise KeyboardInterrupt
