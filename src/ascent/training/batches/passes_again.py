"""The passes of an optimizer step, made again at other weights: the same function of the weights, twice.

What makes it the same: the rows with their advantages, masks and importance ratios, as they were handed to the loss;
the random numbers that dropout draws; and the old log-probabilities. Where a batch has none, TRL takes those of the
policy as it is, so that the ratio is 1 wherever the weights are: those of the first pass are kept for the second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ascent.algorithms.base import Part
from ascent.training.batches.full_precision import computes_in_full, full_precision
from ascent.training.batches.kept_passes import Pass, StepPasses
from ascent.training.batches.one_pass import Metrics, apart, synchronised
from ascent.training.batches.rows import NEWEST, Rows, SubBatch, loss_mask

_OLD = "old_per_token_logps"


class PassesAgain:
    """What an algorithm needs of the passes of the optimizer step that is going on, beside the passes themselves."""

    def __init__(self, trainer: Any, passes: StepPasses) -> None:
        self._trainer, self._accelerator, self._passes = trainer, trainer.accelerator, passes
        self._part: Part | None = None
        self._count: int | None = None  # of passes that are made again; None: all
        self._divergence: list[Tensor] = []  # (2,) each: a sum over tokens, and their number

    def forget(self) -> None:
        """No pass has been made."""
        self._part = self._count = None

    def gave(self, rows: Rows, logps_BC: Tensor) -> None:
        """The forward pass of these rows, with gradients, gave these log-probabilities."""
        passes = self._passes
        if passes.is_repeating and rows.get(_OLD) is not None:
            mask_BC = loss_mask(rows).bool()
            ratio_BC = (logps_BC.detach() - rows[_OLD]).masked_fill(~mask_BC, 0.0).float()
            self._divergence.append(torch.stack([(ratio_BC.exp() - 1 - ratio_BC).sum(), mask_BC.sum().float()]))
        elif passes.all and passes.all[-1].rows is rows and rows.get(_OLD) is None:
            passes.all[-1].logps_BC = logps_BC.detach()

    def part_done(self, model: Any, share: float) -> None:
        """The rows so far, a share of the step's, are those whose passes are made again. Their gradients have been
        reduced over ranks; they are copied."""
        gradients = {each: each.grad.detach().clone() for each in model.parameters() if each.grad is not None}
        self._part, self._count = Part(share, gradients), len(self._passes.all)

    def of(self, model: Any, step: Callable[[SubBatch], Any]) -> Repeatable:
        """The passes of the step, to be made again; `step` makes one of them, forward and backward."""
        return Repeatable(self, self._trainer, model, step)

    @contextlib.contextmanager
    def repeating(self) -> Iterator[Sequence[Pass]]:
        """Inside, the passes that it gives may be made again: see StepPasses."""
        self._divergence = []
        with self._passes.repeating(self._trainer):
            yield self._passes.all[: self._count]

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


def same_loss(each: Pass) -> SubBatch:
    """The rows of a pass, for a loss that is the same function of the weights."""
    rows = {name: value for name, value in each.rows.items() if name != NEWEST}  # it corrects against the sampler
    if each.logps_BC is not None:
        rows[_OLD] = each.logps_BC
    return SubBatch(rows, each.weight)


class Repeatable:
    """See Passes."""

    def __init__(self, kept: PassesAgain, trainer: Any, model: Any, step: Callable[[SubBatch], Any]) -> None:
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
                each.random.restore()
                with (
                    synchronised(self._accelerator, self._model, last),
                    apart(self._trainer._metrics["train"], written),
                ):
                    self._step(same_loss(each))
            kl = self._kept.divergence()
        names = {name for each in written for name in each}
        return {name: _mean([value for each in written for value in each.get(name, [])]) for name in names} | {"kl": kl}

    def _precision(self, full: bool) -> contextlib.AbstractContextManager[None]:
        return full_precision(self._accelerator, self._model) if full else contextlib.nullcontext()


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else 0.0
