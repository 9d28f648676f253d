"""The passes of an optimizer step, made again at other weights: the same function of the weights, twice.

What makes it the same: the rows with their advantages, masks and importance ratios, as they were handed to the loss;
the random numbers that dropout draws; and the old log-probabilities. Where a batch has none, TRL takes those of the
policy as it is, so that the ratio is 1 wherever the weights are: those of the first pass are kept for the second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ascent import devices
from ascent.algorithms.base import Part
from ascent.training.batches.full_precision import computes_in_full, full_precision
from ascent.training.batches.one_pass import Metrics, apart, ragged, synchronised
from ascent.training.batches.rows import NEWEST, Rows, SubBatch, loss_mask

# What TRL's entropy bonus remembers from one step to the next; its loss moves it at the end of a step.
_CONTROLLER = ("entropy_coef", "_last_world_entropy", "_entropy_window_stats")
_OLD = "old_per_token_logps"


@dataclass(slots=True)
class _Kept:
    """A pass that was made. `old_BC` are its own log-probabilities, where its rows have none of an older policy."""

    rows: Rows
    randomness: devices.Randomness
    old_BC: Tensor | None = None

    def again(self) -> SubBatch:
        """Its rows, for a loss that is the same function of the weights."""
        rows = {name: value for name, value in self.rows.items() if name != NEWEST}  # it corrects against the sampler
        if self.old_BC is not None:
            rows[_OLD] = self.old_BC
        return SubBatch(rows, self.rows.weight if isinstance(self.rows, SubBatch) else 1.0)


class KeptPasses:
    """Those of the optimizer step that is going on. Rows are kept, not copied."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._accelerator = trainer, trainer.accelerator
        self._kept: list[_Kept] = []
        self._part: Part | None = None
        self._controller: dict[str, Any] = {}  # before the step
        self._again = False
        self._divergence: list[Tensor] = []  # (2,) each: a sum over tokens, and their number

    def forget(self) -> None:
        """No pass has been made."""
        self._kept, self._part = [], None

    def begins(self, rows: Rows) -> None:
        """The loss of these rows is about to be made."""
        if self._again or self._part is not None or not torch.is_grad_enabled():
            return
        if not self._kept:
            self._controller = self._controller_now()
        self._kept.append(_Kept(rows, devices.randomness()))

    def gave(self, rows: Rows, logps_BC: Tensor) -> None:
        """The forward pass of these rows, with gradients, gave these log-probabilities."""
        if self._again:
            mask_BC = loss_mask(rows).bool()
            ratio_BC = (logps_BC.detach() - rows[_OLD]).masked_fill(~mask_BC, 0.0).float()
            self._divergence.append(torch.stack([(ratio_BC.exp() - 1 - ratio_BC).sum(), mask_BC.sum().float()]))
        elif self._kept and self._kept[-1].rows is rows and rows.get(_OLD) is None:
            self._kept[-1].old_BC = logps_BC.detach()

    def part_done(self, model: Any, share: float) -> None:
        """The rows so far, a share of the step's, are those whose passes are made again. Their gradients have been
        reduced over ranks; they are copied."""
        gradients = {each: each.grad.detach().clone() for each in model.parameters() if each.grad is not None}
        self._part = Part(share, gradients)

    def of(self, model: Any, step: Callable[[SubBatch], Any]) -> Repeatable:
        """The passes of the step, to be made again; `step` makes one of them, forward and backward."""
        return Repeatable(self, self._trainer, model, step)

    def _controller_now(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self._trainer).items() if name in _CONTROLLER}

    @contextlib.contextmanager
    def repeating(self) -> Iterator[Sequence[_Kept]]:
        """Inside, passes are not kept, and TRL's entropy controller is as it was before the step; afterwards it is as
        it is now, as are random states and what says whether gradients are reduced."""
        after, self._again, self._divergence = self._controller_now(), True, []
        vars(self._trainer).update(self._controller)
        try:
            with devices.unchanged_random_state():
                yield self._kept
        finally:
            self._again = False
            vars(self._trainer).update(after)
            self._accelerator.gradient_state._set_sync_gradients(True)

    @property
    def part(self) -> Part | None:
        """See Passes."""
        return self._part

    def divergence(self) -> float:
        """Of the repeated passes, over all ranks: the mean over tokens of KL(first passes' policy ‖ policy now), by
        J. Schulman's estimate exp(d) - 1 - d ("Approximating KL divergence", 2020). Collective."""
        local_2 = torch.stack(self._divergence).sum(0)
        total, tokens = self._accelerator.reduce(local_2, reduction="sum").tolist()
        return total / tokens if tokens else 0.0


class Repeatable:
    """See Passes."""

    def __init__(self, kept: KeptPasses, trainer: Any, model: Any, step: Callable[[SubBatch], Any]) -> None:
        self._kept, self._trainer, self._model, self._step = kept, trainer, model, step
        self._accelerator = trainer.accelerator

    @property
    def gradient_scale(self) -> float:
        """See Passes: torch's scaler multiplies them in fp16."""
        scaler = self._accelerator.scaler
        return float(scaler.get_scale()) if scaler is not None and scaler.is_enabled() else 1.0

    @property
    def is_full_precision(self) -> bool:
        """See Passes."""
        return computes_in_full(self._accelerator, self._model)

    @property
    def part(self) -> Part | None:
        """See Passes."""
        return self._kept.part

    def again(self, *, one: bool = False, full_precision: bool = False) -> Mapping[str, float]:
        """See Passes."""
        written: list[Metrics] = []
        with self._kept.repeating() as kept, self._precision(full_precision):
            chosen = kept[-1:] if one else kept  # the first ones may be another rank's filling
            for number, each in enumerate(chosen):
                last = number == len(chosen) - 1
                each.randomness.restore()
                with (
                    synchronised(self._accelerator, self._model, last),
                    ragged(self._accelerator),
                    apart(self._trainer._metrics["train"], written),
                ):
                    self._step(each.again())
            kl = self._kept.divergence()
        names = {name for each in written for name in each}
        return {name: _mean([value for each in written for value in each.get(name, [])]) for name in names} | {"kl": kl}

    def _precision(self, full: bool) -> contextlib.AbstractContextManager[None]:
        return full_precision(self._accelerator, self._model) if full else contextlib.nullcontext()


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else 0.0
