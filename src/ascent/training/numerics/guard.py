"""No optimizer step is made with a gradient that isn't finite, and a training of which no step is good ends.

The norm of the gradient is known before the optimizer steps, after gradients were reduced over ranks: so it is finite
on all ranks, or on none, and each decides alike. A bad step is skipped as accelerate skips those of a gradient scaler
(`step_was_skipped`), so that the learning-rate schedule waits too. With a scaler (fp16) an overflow is its own affair:
it skips the step and halves its scale. Only when the scale falls below 1, which no overflow explains, is it a bad step.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from typing import Any

from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainerControl, TrainerState

from ascent.errors import InputError
from ascent.training.arguments import own_setting


class NotFiniteError(RuntimeError):
    """So many steps in a row had a gradient that isn't finite that the training ended."""


class StepGuard(TrainerCallback):
    """Judges each optimizer step of a training by its gradient's norm; ends it after `max_bad_steps` in a row.

    `bad_steps` and `overflows` count since the training began. `last` is what the newest step was.
    """

    def __init__(self, args: Any) -> None:
        """`args` is the training's GRPOConfig. Raises InputError for a `max_bad_steps` below 1."""
        self.most = own_setting(args, "max_bad_steps")
        if isinstance(self.most, bool) or not isinstance(self.most, int) or self.most < 1:
            raise InputError(f"max_bad_steps={self.most!r}: should be a number of steps, 1 or more")
        if args.max_grad_norm is None:
            args.max_grad_norm = 0.0  # the Trainer's word for no clipping; the norm is computed all the same
        self.bad_steps = self.overflows = self.in_a_row = 0
        self._bad = self._overflow = False
        self.ended_with: NotFiniteError | None = None

    def refuses(self, norm: Any, accelerator: Any, optimizer: Any) -> bool:
        """Whether the step about to be made is a bad one; then it is skipped. `norm` is the gradient's, a scalar, None
        where nobody knows it. One read from the device. With DeepSpeed, whose backward pass has made the step already,
        nothing is judged."""
        self._bad = self._overflow = False
        if norm is None or accelerator.distributed_type == DistributedType.DEEPSPEED:
            return False
        finite = math.isfinite(norm_of(norm))
        scaler = accelerator.scaler
        if scaler is None:
            if finite:
                optimizer._is_overflow = False  # accelerate resets it only with a scaler
            else:
                _skip_next(optimizer)
            self._bad = not finite
        elif not finite:
            self._overflow = True
            self.overflows += 1
            self._bad = scaler.get_scale() * scaler.get_backoff_factor() < 1
        self.bad_steps += self._bad
        if self._bad:
            self.in_a_row += 1
        elif not self._overflow:  # which proves nothing either way
            self.in_a_row = 0
        return self._bad

    def write(self, metrics: MutableMapping[str, list[float]]) -> None:
        """What the newest step was, into TRL's metrics."""
        metrics["numerics/bad_step"].append(float(self._bad))
        if self._overflow:
            metrics["numerics/overflow"].append(1.0)

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Count anew."""
        self.in_a_row, self.ended_with = 0, None

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:
        """Save and stop after too many."""
        if self.in_a_row >= self.most:
            steps = f"the last {self.in_a_row} steps" if self.in_a_row > 1 else "the last step"
            self.ended_with = NotFiniteError(
                f"the gradients of {steps} (to step {state.global_step}) were not finite; none of them was made, and "
                "the weights are those before"
            )
            control.should_save = control.should_training_stop = True
        return control

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Raise NotFiniteError where that is why: the caller must not take the model for a trained one."""
        if self.ended_with is not None:
            raise self.ended_with


def norm_of(norm: Any) -> float:
    """A gradient's norm as a number. Collective where weights are sharded."""
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def _skip_next(optimizer: Any) -> None:
    """accelerate's `optimizer` makes no step the next time it is asked to, and says that it skipped it."""
    usual = vars(optimizer).get("step")  # torch's schedulers put a counter there

    def skip(closure: Any = None) -> None:
        del closure
        if usual is None:
            del optimizer.step  # the class's own method again
        else:
            optimizer.step = usual
        optimizer._is_overflow = True

    optimizer.step = skip
