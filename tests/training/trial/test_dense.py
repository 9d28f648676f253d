"""The price of a token: passes of rows without padding, that leave the trainer as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.small_trainer import make_trainer

from ascent.training.trial.dense import dense_cost

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("settings", [{}, {"beta": 0.1}, {"num_iterations": 2}], ids=["usual", "reference", "twice"])
def test_after_a_training(settings: dict[str, Any], tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    trainer = make_trainer(tiny_policy(), tmp_path, max_steps=1, **settings)
    trainer.train()
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    found = dense_cost(trainer, 100.4, 27.6, repeats=1)
    assert (found.rows, found.prompt, found.completion) == (32, 100, 28), "about 4,096 tokens"
    assert found.per_token > 0
    assert all(torch.equal(weight, old) for weight, old in zip(trainer.model.parameters(), before, strict=True))
    assert all(weight.grad is None for weight in trainer.model.parameters())


def test_of_a_trainer_that_never_sampled(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    found = dense_cost(make_trainer(tiny_policy(), tmp_path), 0.2, 2.4, repeats=1)
    assert (found.rows, found.prompt, found.completion) == (64, 1, 2), "not more rows than a pass has"
