"""The passes of an optimizer step, kept until it is over, so that they can be made again.

Nothing is copied: TRL keeps the rows of a generation anyway, and a sub-batch is what was trained on. Each pass keeps
where the random numbers stood, for models with dropout.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer

from ascent import devices
from ascent.training.batches.one_pass import ragged
from ascent.training.batches.rows import Rows, SubBatch

# What TRL's entropy bonus remembers from one step to the next; its loss moves it at the end of a step.
ENTROPY_BONUS = ("entropy_coef", "_last_world_entropy")
_CONTROLLER = (*ENTROPY_BONUS, "_entropy_window_stats")  # what it sums up within a step


@dataclass(slots=True)
class Pass:
    """One forward and backward pass: its rows as TRL's loss takes them, the Trainer's `num_items_in_batch`, and the
    random state before it. `logps_BC` are the log-probabilities that its forward pass gave, where somebody needs them.
    """

    rows: Rows
    items: Any
    random: devices.Randomness
    logps_BC: Tensor | None = None

    @property
    def weight(self) -> float:
        """What the loss of the rows was multiplied with."""
        return self.rows.weight if isinstance(self.rows, SubBatch) else 1.0


class StepPasses:
    """Those of the optimizer step that is going on, in their order."""

    def __init__(self) -> None:
        self.all: list[Pass] = []
        self.is_repeating = False
        self._controller: dict[str, Any] = {}  # before the step

    @property
    def entropy_bonus(self) -> dict[str, str]:
        """The numbers with which TRL's entropy bonus went into the step, as text: JSON has no infinity."""
        return {name: str(float(self._controller[name])) for name in ENTROPY_BONUS if name in self._controller}

    def note(self, trainer: Any, rows: Rows, items: Any) -> None:
        """A pass begins, unless it is without gradients, or a repetition."""
        if self.is_repeating or not torch.is_grad_enabled():
            return
        if not self.all:
            self._controller = _controller_of(trainer)
        self.all.append(Pass(rows, items, devices.randomness()))

    def forget(self) -> None:
        """No pass has been made."""
        self.all = []

    @contextlib.contextmanager
    def repeating(self, trainer: Any) -> Iterator[None]:
        """Inside, passes may be made again: what TRL's entropy bonus knew before the step holds, and what they draw,
        write into TRL's metrics and say of the sampler is put back afterwards."""
        gradient_state, metrics = trainer.accelerator.gradient_state, trainer._metrics["train"]
        synchronised, controller = gradient_state.sync_gradients, _controller_of(trainer)
        trainer._metrics["train"], self.is_repeating = defaultdict(list), True
        vars(trainer).update(self._controller)
        try:
            with devices.unchanged_random_state(), ragged(trainer.accelerator):
                yield
        finally:
            gradient_state._set_sync_gradients(synchronised)
            trainer._metrics["train"], self.is_repeating = metrics, False
            vars(trainer).update(controller)
            if trainer._batches.correction is not None:
                trainer._batches.correction.forget()


def repeat(trainer: Any, model: Any, each: Pass) -> Tensor:
    """Make a pass once more, inside `repeating`: its gradients are added to those that are there, reduced over ranks.
    Returns its loss, a scalar. Collective over all ranks, which make as many passes."""
    # TRL's loss takes it for the end of an optimizer step
    trainer.accelerator.gradient_state._set_sync_gradients(False)
    each.random.restore()
    rows = each.rows if isinstance(each.rows, SubBatch) else SubBatch(dict(each.rows), 1.0)
    return Trainer.training_step(trainer, model, rows, each.items)


def _controller_of(trainer: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(trainer).items() if name in _CONTROLLER}
