"""A step is told, and a checkpoint made, once every rank has kept the completions that they count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.small_trainer import Memory, make_trainer
from tests.tracking.test_rollout_writer import fill_disk_at

from ascent.errors import InputError
from ascent.tracking.rollouts import read_rollouts
from ascent.tracking.run_directory import create, read_json_lines
from ascent.training.records.recorder import RunRecorder, StepRecord

pytestmark = pytest.mark.torch


class Order(Memory):
    """Remembers what came after what."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def generation(self, number: int, records: Any) -> None:
        self.events.append("generation")

    def settle(self) -> None:
        self.events.append("settle")

    def step(self, record: StepRecord) -> Mapping[str, float]:
        self.events.append("step")
        return super().step(record)


def test_each_rank_settles_before_all_of_them_meet(
    tiny_policy: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 writes the line after a collective call that the others make once they have settled."""
    recorder = Order()
    trainer = make_trainer(tiny_policy(), tmp_path, recorder, max_steps=2, save_strategy="steps", save_steps=1)
    gather, save = trainer.accelerator.gather, trainer._save_checkpoint

    def meet(tensor: Any) -> Any:
        recorder.events.append("gather")
        return gather(tensor)

    def save_checkpoint(model: Any, trial: Any) -> None:
        recorder.events.append("checkpoint")
        save(model, trial)

    monkeypatch.setattr(trainer.accelerator, "gather", meet)
    monkeypatch.setattr(trainer, "_save_checkpoint", save_checkpoint)
    trainer.train()
    ends = [place for place, event in enumerate(recorder.events) if event == "step"]
    assert len(ends) == 2
    for end in ends:
        assert recorder.events[end - 2 : end + 2] == ["settle", "gather", "step", "checkpoint"]


def test_a_training_ends_at_the_step_that_it_can_not_keep(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    run = create(tmp_path, "run")
    fill_disk_at(run.generation_rollouts(1, 0))
    trainer = make_trainer(tiny_policy(), run.checkpoints, RunRecorder(run), save_strategy="steps", save_steps=1)
    with pytest.raises(InputError, match="No space left"):
        trainer.train()
    assert [line["step"] for line in read_json_lines(run.metrics)] == [1]
    assert [path.name for path in run.checkpoints.glob("checkpoint-*")] == ["checkpoint-1"]
    assert {row["generation"] for row in read_rollouts(run.rollouts)} == {0}
