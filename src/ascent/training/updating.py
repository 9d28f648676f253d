"""TRL's trainer with an optimizer step that does no work without effect. What it leaves out, `batches/` decides."""

from __future__ import annotations

import contextlib
import functools
import time
from typing import Any

import torch
from trl.trainer.grpo_trainer import GRPOTrainer as TRLTrainer

from ascent.algorithms.base import Algorithm
from ascent.training.batches.correction import Corrected
from ascent.training.batches.rows import NEWEST, SubBatch
from ascent.training.batches.settings import StepBatches
from ascent.training.batches.window import Window
from ascent.training.numerics import bad_step
from ascent.training.numerics.watching import Numerics
from ascent.training.records.step_metrics import StepMetrics
from ascent.training.step.clock import StepClock


class Updating(TRLTrainer):
    """One optimizer step: log-probabilities, loss, backward passes. The algorithm makes the loss, from TRL's.

    TRL calls `training_step` once a micro-batch. Where `_batches` has a window, those before the last of an optimizer
    step only hand their rows over, and the last one trains on all of them, in sub-batches of the window's making.
    """

    _plain: bool
    _algorithm: Algorithm
    _batches: StepBatches
    _clock: StepClock
    _step_metrics: StepMetrics
    _numerics: Numerics
    _generate_every: int  # micro-batches from one generation to the next
    _in_loss: Any = ()  # the rows whose loss is being made

    def _step_begins(self) -> None:
        """Let go of what an optimizer step that never came to its end has left: a user's callback may end a training
        between two micro-batches, and another `train` may follow."""
        self._numerics.passes.forget()
        if self._batches.window is not None:
            self._batches.window.forget()
        if self._batches.correction is not None:
            self._batches.correction.forget()
        if self._batches.again is not None:
            self._batches.again.forget()

    def _step_ended(self, corrected: Corrected | None) -> None:
        """All backward passes of an optimizer step are done, or one has failed. `corrected` is what they showed of the
        sampler, where that comes from them."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        return generation_batch if isinstance(generation_batch, SubBatch) else super()._prepare_inputs(generation_batch)

    def pass_of_trl(self, *args: Any, **keywords: Any) -> Any:
        """TRL's own `_get_per_token_logps_and_entropies`."""
        return super()._get_per_token_logps_and_entropies(*args, **keywords)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **images: Any,
    ) -> Any:
        gradients, forward = torch.is_grad_enabled(), self._batches.forward
        padded = (input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy)
        with contextlib.nullcontext() if gradients else self._clock.phase("logps"):
            if forward is None or compute_aux_loss or any(image is not None for image in images.values()):
                found = self.pass_of_trl(model, *padded, compute_aux_loss, **images)
            else:
                found = (*forward.logps(model, *padded), None)
        if gradients and self._batches.correction is not None and NEWEST in self._in_loss:
            self._batches.correction.give(self._in_loss, found[0])  # TRL's loss takes the ratio next
        if gradients and self._batches.again is not None:
            self._batches.again.gave(self._in_loss, found[0])
        return found

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **keywords: Any) -> torch.Tensor:
        """The algorithm's loss of a micro-batch, or the weighted one of a sub-batch."""
        self._numerics.passes.note(self, inputs, keywords.get("num_items_in_batch"))
        if self._plain:
            return super().compute_loss(model, inputs, *args, **keywords)
        self._in_loss = inputs
        loss = self._algorithm.loss(inputs, functools.partial(super().compute_loss, model, inputs, *args, **keywords))
        return loss * inputs.weight if isinstance(inputs, SubBatch) else loss

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """TRL's, or this one's part of a window. Timed: from here to the end of the optimizer step is `update`, less
        what nests in it."""
        self._clock.base("update")
        window = self._batches.window
        try:
            if window is None:
                loss = super().training_step(model, inputs, num_items_in_batch)
            else:
                loss = self._step_of_window(window, model, inputs, num_items_in_batch)
        except BaseException:
            self._step_ended(None)
            raise
        if self.accelerator.sync_gradients and not self._plain:
            self._step_ended(self._corrected())
            self._adjust_gradients(model, num_items_in_batch)
        self._step_metrics.add_loss(loss)
        return loss

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        """The gradient's norm, after which the optimizer steps: a bad step is skipped, explained and kept."""
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        if self._numerics.guard.refuses(norm, self.accelerator, self.optimizer):
            bad_step.treat(self, model, norm)
        self._numerics.passes.forget()
        return norm

    def _step_of_window(self, window: Window, model: Any, inputs: Any, num_items_in_batch: Any) -> torch.Tensor:
        """Hand the micro-batch over; the last one of an optimizer step trains on all of them. Counters are TRL's."""
        began, metrics = time.perf_counter(), self._metrics["train"]
        model.train()
        window.hand_over(self._step // self._generate_every, self._prepare_inputs(inputs))
        loss = torch.zeros((), device=self.accelerator.device)
        if self.accelerator.sync_gradients:
            shares = self._batches.forward is not None and self._batches.forward.shares(model)
            run = functools.partial(self._one_pass, model, num_items_in_batch)
            done = window.train(model, shares, run, metrics, **self._batches.first_part(model))
            for name, value in done.metrics.items():
                metrics[name].append(value)
            loss = done.loss
        self._step += 1
        self._current_train_step_time += time.perf_counter() - began
        if self._step % self.current_gradient_accumulation_steps == 0:
            metrics["step_time"].append(self._current_train_step_time)
            self._current_train_step_time = 0.0
        return loss

    def _one_pass(self, model: Any, num_items_in_batch: Any, batch: SubBatch) -> torch.Tensor:
        """Forward, weighted loss and backward of a sub-batch, by transformers' `training_step`: TRL's counts."""
        loss: torch.Tensor = super(TRLTrainer, self).training_step(model, batch, num_items_in_batch)
        return loss

    def _adjust_gradients(self, model: Any, num_items_in_batch: Any) -> None:
        """The algorithm may change the gradients of the step, which are now reduced over ranks."""
        adjustment, again = self._batches.adjustment, self._batches.again
        if adjustment is None or again is None:
            return
        passes = again.of(model, functools.partial(self._one_pass, model, num_items_in_batch))
        try:
            found = adjustment(model, passes, self.state.global_step)
        finally:
            again.forget()
        for name, value in found.items():
            self._metrics["train"][name].append(value)

    def _corrected(self) -> Corrected | None:
        """What the step's training forwards showed of the sampler, also into TRL's metrics."""
        if self._batches.correction is None:
            return None
        corrected = self._batches.correction.finish()
        for name, value in corrected.metrics.items() if corrected is not None else ():
            self._metrics["train"][name].append(value)
        return corrected
