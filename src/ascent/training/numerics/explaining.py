"""Why was a step bad? Its passes are made once more on the same weights (it was skipped), watched module by module."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch.distributed.tensor import DTensor

from ascent.training.batches.kept_passes import repeat
from ascent.training.numerics.finding import Finding, gravest
from ascent.training.numerics.tracing import Trace

_SQUARE_OVERFLOWS = 1e18  # the square of more is near the end of float32


def explain(trainer: Any, model: Any) -> Finding:
    """What the passes of a GRPOTrainer's bad step show when they are made again. Gradients are dropped before and
    after. Collective: all ranks make their passes and get the same answer."""
    model.zero_grad(set_to_none=True)  # the step's own: clipped by a norm that isn't finite, they tell nothing
    passes, accelerator = trainer._numerics.passes, trainer.accelerator
    with passes.repeating(trainer):
        with Trace(accelerator.unwrap_model(model)) as trace:
            for each in passes.all:
                trace.begin(each.rows)
                trace.end(repeat(trainer, model, each))
        found = trace.found or [_of_sums(model)]
    model.zero_grad(set_to_none=True)
    here = dataclasses.replace(gravest(found), rank=accelerator.process_index)
    return gravest(trainer.agreement.ranks.exchange(here))


def _of_sums(model: Any) -> Finding:
    """Every pass was finite: whether what they add up to is, on this rank."""
    trace, largest = Trace(model), 0.0
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        if not trace.look("sum", name, parameter.grad):
            return trace.found[0]
        local = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
        largest = max(largest, float(local.abs().max())) if local.numel() else largest
    return Finding("norm", largest=largest) if largest > _SQUARE_OVERFLOWS else Finding("nothing")
