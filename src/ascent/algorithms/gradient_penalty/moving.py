"""Weights are moved along a direction, and put back bit by bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ascent.algorithms.gradient_penalty.vectors import locals_of


@contextmanager
def moved(parameters: Sequence[Tensor], direction: Sequence[Tensor], step: float) -> Iterator[None]:
    """Inside, each parameter is `step` times its part of `direction` further. Afterwards, whatever happened, it has the
    bits that it had; for that, a copy of the parameters is kept."""
    with torch.no_grad():
        weights = locals_of(parameters)
        kept = [weight.clone() for weight in weights]
    try:
        with torch.no_grad():
            for weight, part in zip(weights, locals_of(direction), strict=True):
                weight.add_(part, alpha=step)
        yield
    finally:
        with torch.no_grad():
            for weight, before in zip(weights, kept, strict=True):
                weight.copy_(before)


@contextmanager
def gradients_aside(parameters: Sequence[nn.Parameter]) -> Iterator[list[Tensor]]:
    """Inside, parameters have no gradients, and what they had is given. Where it fails, they have them again; else they
    keep what they have got inside."""
    kept = [parameter.grad for parameter in parameters]
    assert all(gradient is not None for gradient in kept)
    first = [_own(gradient) for gradient in kept if gradient is not None]
    clear_gradients(parameters)
    try:
        yield first
    except BaseException:
        for parameter, gradient in zip(parameters, first, strict=True):
            parameter.grad = gradient
        raise


def take_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """The gradients, which the parameters no longer have; zeros for one that got none."""
    taken = [
        torch.zeros_like(parameter) if parameter.grad is None else _own(parameter.grad) for parameter in parameters
    ]
    clear_gradients(parameters)
    return taken


def clear_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """The next backward pass begins with none."""
    for parameter in parameters:
        parameter.grad = None


def _own(gradient: Tensor) -> Tensor:
    """A gradient that no later backward pass writes into: DDP may keep them as views of the buckets that it reduces."""
    return gradient.clone() if gradient._is_view() else gradient
