"""The passes of a function of some weights, without a trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ascent.algorithms.gpro import GPRO
from ascent.algorithms.gradient_penalty.update import GradientPenalty


class PlainPasses:
    """`loss` of a model, backward through it. `cast` surrounds passes that aren't in full precision."""

    gradient_scale = 1.0
    part = None

    def __init__(
        self, loss: Callable[[], Tensor], cast: Callable[[], AbstractContextManager[Any]] | None = None
    ) -> None:
        self.loss, self.cast, self.made = loss, cast, 0
        self.is_full_precision = cast is None

    def again(self, *, one: bool = False, full_precision: bool = False) -> Mapping[str, float]:
        self.made += 1
        with nullcontext() if full_precision or self.cast is None else self.cast():
            loss = self.loss() * self.gradient_scale
        loss.backward()
        return {"kl": 0.0}


def penalized(
    model: nn.Module, passes: PlainPasses, *, step: int = 0, tell: Callable[[str], None] = print, **settings: Any
) -> dict[str, float]:
    """One optimizer step's gradients with the penalty, in `.grad`; what was seen."""
    penalty = GradientPenalty(GPRO(**settings).penalty, tell)
    model.zero_grad()
    passes.again()
    return dict(penalty(model, passes, step))


def flat(tensors: Any) -> Tensor:
    """As one vector of float64."""
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def gradient(model: nn.Module) -> Tensor:
    """The model's gradient as one vector of float64."""
    return flat(parameter.grad for parameter in model.parameters())


def exact(model: nn.Module, loss: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """The gradient g and the Hessian's product with g/‖g‖, by differentiating twice."""
    parameters = list(model.parameters())
    first = torch.autograd.grad(loss(), parameters, create_graph=True)
    length = torch.sqrt(sum((each.square().sum() for each in first), torch.zeros((), dtype=first[0].dtype)))
    second = torch.autograd.grad(length, parameters)
    return flat(first), flat(second)
