"""Stop at the end of a step, with a checkpoint, when asked by Ctrl-C, SIGTERM or a stop file."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from ascent.training.launch.stop_file import stop_file
from ascent.training.step.ranks import Ranks


class StopAtStepEnd(TrainerCallback):
    """Ends training after the step in which a stop was asked for. All processes agree, so none is left waiting."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._file = stop_file()
        self._asked = False
        self.stopped = False

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:
        """Save and stop when any process was asked to."""
        asked = self._asked or (self._file is not None and self._file.exists())
        if self._ranks.any_rank(asked):
            self.stopped = control.should_save = control.should_training_stop = True
        return control

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM as requests to stop; a second one stops at once, without a checkpoint."""
        previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def ask(number: int, frame: FrameType | None) -> None:
            if self._asked:
                for each, handler in previous.items():
                    signal.signal(each, handler)
                raise KeyboardInterrupt
            self._asked = True
            print(
                "\nstopping after this step, with a checkpoint (again: stop now, without one)",
                file=sys.stderr,
                flush=True,
            )

        for number in previous:
            signal.signal(number, ask)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
