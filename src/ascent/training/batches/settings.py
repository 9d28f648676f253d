"""What a step may save, from the trainer's arguments and what its loss allows."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ascent.algorithms.base import Adjustment
from ascent.errors import InputError
from ascent.memory.cost import cost_model
from ascent.models.backbone import transformers_model
from ascent.training.arguments import own_setting
from ascent.training.batches.correction import Correction, Settings
from ascent.training.batches.parting import parting_of
from ascent.training.batches.passes.forward import StepForward
from ascent.training.batches.passes.support import positions_are_relative
from ascent.training.batches.passes_again import PassesAgain
from ascent.training.batches.plan import Cost
from ascent.training.batches.window import Savings, Window
from ascent.training.dropout import drops_out
from ascent.training.step.ranks import Ranks


@dataclass(frozen=True, slots=True)
class StepBatches:
    """How an optimizer step is trained on. Without a `window` TRL's micro-batches are; without a `correction` TRL takes
    the old log-probabilities in a pass of their own; without a `forward` all passes are TRL's; without an `adjustment`
    gradients stay as they are, and no passes are made `again`."""

    window: Window | None = None
    correction: Correction | None = None
    forward: StepForward | None = None
    adjustment: Adjustment | None = None
    again: PassesAgain | None = None

    def first_part(self, model: Any) -> dict[str, Any]:
        """How a window has the passes first that the adjustment wants again, where those aren't all."""
        if self.adjustment is None or self.again is None or self.adjustment.fraction == 1.0:
            return {}
        return {"fraction": self.adjustment.fraction, "part_done": functools.partial(self.again.part_done, model)}


def step_batches(
    trainer: Any, ranks: Ranks, trl_pass: Callable[..., Any], *, tell: Callable[[str], None]
) -> StepBatches:
    """Those of a trainer, whose pass over padded tensors is `trl_pass`. `tell` takes sentences to the user.

    Raises InputError for a setting that can't be kept.
    """
    args = trainer.args
    budget, parting = _budget(args), parting_of(trainer)
    skip = bool(own_setting(args, "skip_zero_advantage"))
    window, cost = None, None
    if budget is not None or skip:
        if parting.weighing is None:
            tell(
                "note: max_tokens_per_batch and skip_zero_advantage have no effect, micro-batches stay whole: "
                f"{parting.why}"
            )
        else:
            model = trainer.accelerator.unwrap_model(trainer.model)
            movable = positions_are_relative(model)
            if not movable:
                tell(
                    "note: prompts keep their padding and rows their rank: it isn't known that this model computes a "
                    "row alike wherever it stands"
                )
            cost = _cost(model) if movable and own_setting(args, "balance_ranks") else None
            window = Window(
                trainer.accelerator,
                ranks,
                parting,
                Savings(budget, skip, cost, movable),
                per_sequence=trainer.importance_sampling_level == "sequence",
                tell=tell,
            )
    correction = None
    if _leaves_out_old_pass(trainer):
        correction = _correction(trainer, rows_move=window is not None and cost is not None)
    adjustment = trainer._algorithm.adjustment(trainer, tell)
    if adjustment is not None and adjustment.fraction < 1.0 and window is None:
        raise InputError(
            f"gradient_penalty_fraction={adjustment.fraction:g} takes some of the rows, but micro-batches stay whole: "
            f"{parting.why or 'max_tokens_per_batch is null and skip_zero_advantage is false'}",
            "Set gradient_penalty_fraction=1.",
        )
    again = None if adjustment is None else PassesAgain(trainer, trainer._numerics.passes)
    return StepBatches(window, correction, StepForward(trainer, trl_pass, tell), adjustment, again)


def _budget(args: Any) -> int | None:
    """See Savings."""
    given = own_setting(args, "max_tokens_per_batch")
    if given is None or given == "auto":
        return None if given is None else 0
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise InputError(
            f"max_tokens_per_batch={given!r}: should be a number of tokens (1 or more), 'auto', or null for TRL's "
            "micro-batches"
        )
    return given


def _cost(model: Any) -> Cost:
    """What a sequence costs a model whose config is known (`movable`)."""
    return functools.partial(cost_model(transformers_model(model).config).causal, 1)


def _leaves_out_old_pass(trainer: Any) -> bool:
    """Whether the policy that sampled is the one that is trained: each optimizer step trains on whole generations,
    once, and two forward passes of the same weights give the same."""
    args = trainer.args
    aligned = args.gradient_accumulation_steps % (args.steps_per_generation * args.num_iterations) == 0
    corrected = trainer.use_vllm and trainer.vllm_importance_sampling_correction
    return bool(own_setting(args, "skip_old_logps") and corrected and aligned and not drops_out(trainer.model))


def _correction(trainer: Any, *, rows_move: bool) -> Correction:
    settings = Settings(
        trainer.vllm_importance_sampling_mode,
        trainer.vllm_importance_sampling_clip_min,
        trainer.vllm_importance_sampling_clip_max,
    )
    return Correction(settings, trainer.accelerator, rows_move=rows_move)
