"""A training that is resumed in a later epoch samples the prompts of that epoch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.small_trainer import Memory, make_trainer

pytestmark = pytest.mark.torch


def prompts(memory: Memory) -> list[list[str]]:
    return [[record.task_id for record in records] for _, records, _ in memory.generations]


@pytest.mark.parametrize(
    ("step", "mended"), [(4, True), (5, True), (5, False)], ids=["between epochs", "inside an epoch", "TRL alone"]
)
def test_a_resumed_training_goes_on_in_its_epoch_s_order(
    step: int, mended: bool, tiny_policy: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four steps an epoch. Without the mend TRL draws the first epoch's order again; if this fails, the mend is not
    needed any more."""
    settings: dict[str, Any] = {
        "max_steps": 6,
        "save_strategy": "steps",
        "save_steps": step,
        "max_completion_length": 1,
    }
    whole, again = Memory(), Memory()
    make_trainer(tiny_policy(), tmp_path, whole, **settings).train()
    if not mended:
        monkeypatch.setattr("ascent.compat.epoch_order.OrderOfLaterEpochs.on_train_begin", lambda *_, **__: None)
    trainer = make_trainer(tiny_policy(), tmp_path, again, **settings)
    trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert (prompts(again) == prompts(whole)[step:]) == mended
