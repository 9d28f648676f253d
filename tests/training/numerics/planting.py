"""Plants NaN and infinities into a training, at the steps of one's choice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import Tensor


@contextlib.contextmanager
def in_output(trainer: Any, module: str, steps: Collection[int], value: float) -> Iterator[None]:
    """Some numbers of that module's output are `value` in the training passes of these steps (from 1 on)."""

    def spoil(_: Any, __: Any, output: Any) -> Any:
        if trainer.state.global_step + 1 in steps and torch.is_grad_enabled():
            return _with(output, value)
        return output

    with _hooked(_module(trainer, module), spoil):
        yield


@contextlib.contextmanager
def in_gradient(trainer: Any, module: str, steps: Collection[int], value: float) -> Iterator[None]:
    """So it is with the gradient that comes back to that module's output."""

    def spoil(_: Any, __: Any, output: Any) -> None:
        if trainer.state.global_step + 1 in steps and torch.is_grad_enabled():
            _first(output).register_hook(lambda gradient: _spoilt(gradient, value))

    with _hooked(_module(trainer, module), spoil):
        yield


@contextlib.contextmanager
def once(trainer: Any, module: str, step: int) -> Iterator[None]:
    """NaN in that module's output, in the first training pass of the step and never again: what a repetition does not
    show."""
    done: list[int] = []

    def spoil(_: Any, __: Any, output: Any) -> Any:
        if trainer.state.global_step + 1 == step and torch.is_grad_enabled() and not done:
            done.append(step)
            return _with(output, float("nan"))
        return output

    with _hooked(_module(trainer, module), spoil):
        yield


@contextlib.contextmanager
def in_advantages(trainer: Any, step: int, value: float) -> Iterator[None]:
    """One advantage of each generation that is scored for that step is `value`."""
    usual: Callable[..., Any] = trainer._generate_and_score_completions

    def score(inputs: Any) -> Any:
        output = usual(inputs)
        if trainer.state.global_step + 1 == step:
            output["advantages"][0] = value
        return output

    trainer._generate_and_score_completions = score
    try:
        yield
    finally:
        del trainer._generate_and_score_completions


def _module(trainer: Any, name: str) -> torch.nn.Module:
    found: torch.nn.Module = trainer.model.get_submodule(name)
    return found


@contextlib.contextmanager
def _hooked(module: torch.nn.Module, hook: Any) -> Iterator[None]:
    handle = module.register_forward_hook(hook, prepend=True)  # before those that watch
    try:
        yield
    finally:
        handle.remove()


def _first(output: Any) -> Tensor:
    tensor: Tensor = output if isinstance(output, Tensor) else output[0]
    return tensor


def _with(output: Any, value: float) -> Any:
    spoilt = _spoilt(_first(output), value)
    return spoilt if isinstance(output, Tensor) else (spoilt, *output[1:])


def _spoilt(tensor: Tensor, value: float) -> Tensor:
    spoilt = tensor.clone()
    spoilt[-1, tensor.shape[1] // 2 + 1 :, 0] = value  # (B, T, H): the last row's completion
    return spoilt
