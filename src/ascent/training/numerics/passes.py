"""The passes of an optimizer step, kept until it is known to be good, so that they can be repeated.

Nothing is copied: TRL keeps the rows of a generation anyway, and a sub-batch is what was trained on. Each pass keeps
where the random numbers stood, for models with dropout.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Trainer

from ascent import devices
from ascent.training.batches.rows import SubBatch
from ascent.training.batches.window import ragged

_CONTROLLER = ("entropy_coef", "_last_world_entropy", "_entropy_window_stats")  # TRL's, moved by its loss


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward and backward pass: its rows as TRL's loss takes them, the Trainer's `num_items_in_batch`, and the
    random state before it."""

    rows: Mapping[str, Any]
    items: Any
    random: devices.Randomness

    @property
    def weight(self) -> float:
        """What the loss of the rows was multiplied with."""
        return self.rows.weight if isinstance(self.rows, SubBatch) else 1.0


class StepPasses:
    """Those of the optimizer step that is going on, in their order."""

    def __init__(self) -> None:
        self.all: list[Pass] = []
        self._complete = False

    def note(self, rows: Mapping[str, Any], items: Any) -> None:
        """A pass begins, unless it is without gradients, or the step has all of its own."""
        if torch.is_grad_enabled() and not self._complete:
            self.all.append(Pass(rows, items, devices.randomness()))

    def complete(self) -> None:
        """The step has made all its passes: what is computed until it ends is a repetition."""
        self._complete = True

    def forget(self) -> None:
        """No pass has been made."""
        self.all, self._complete = [], False

    @contextlib.contextmanager
    def repeating(self, trainer: Any) -> Iterator[None]:
        """Inside, passes may be made again (`repeat`): what a training remembers of a pass is put back afterwards, and
        gradients are dropped."""
        state = trainer.accelerator.gradient_state
        synchronised, metrics = state.sync_gradients, trainer._metrics["train"]
        controller = {name: getattr(trainer, name) for name in _CONTROLLER if hasattr(trainer, name)}
        trainer._metrics["train"] = defaultdict(list)
        self._complete = True
        state._set_sync_gradients(False)  # TRL's loss takes it for the end of an optimizer step
        try:
            with devices.unchanged_random_state(), ragged(trainer.accelerator):
                yield
        finally:
            state._set_sync_gradients(synchronised)
            trainer._metrics["train"] = metrics
            for name, value in controller.items():
                setattr(trainer, name, value)
            if trainer._batches.correction is not None:
                trainer._batches.correction.forget()
            trainer.model_wrapped.zero_grad(set_to_none=True)


def repeat(trainer: Any, model: Any, each: Pass) -> torch.Tensor:
    """Make a pass once more, inside `repeating`: its gradients are added to those that are there, reduced over ranks.
    Returns its loss, a scalar. Collective over all ranks, which make as many passes."""
    each.random.restore()
    rows = each.rows if isinstance(each.rows, SubBatch) else SubBatch(dict(each.rows), 1.0)
    return Trainer.training_step(trainer, model, rows, each.items)
