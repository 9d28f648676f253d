"""Saving: a kill at any moment leaves a checkpoint to go on from, and what is rotated away is never the best."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.killer import killed_at
from tests.small_trainer import Memory, make_trainer

from ascent.tracking.run_directory import STATE_FILE, RunDirectory, RunState, is_complete, read_state, write_json
from ascent.training.checkpoint.saving import rotate

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def saved(tiny_policy: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A trainer that has made two steps and kept a checkpoint of the second, in the middle of a generation."""
    run = tmp_path_factory.mktemp("run")
    trainer = make_trainer(
        tiny_policy(),
        run / "checkpoints",
        max_steps=2,
        steps_per_generation=3,
        gradient_accumulation_steps=1,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=1,
    )
    trainer.train()
    shutil.copytree(run / "checkpoints", run / "pristine")
    return trainer, run


@pytest.mark.parametrize("step", [3, 2], ids=["a new one", "the only one anew"])
def test_a_kill_at_any_moment_of_saving_leaves_a_checkpoint(step: int, saved: tuple[Any, Path]) -> None:
    trainer, path = saved
    run, pristine = RunDirectory(path), path / "pristine"
    trainer.state.global_step = step
    trainer._resume_point = RunState(1, step, step)
    newest: list[int] = []
    for changes in range(1000):
        shutil.rmtree(run.checkpoints)
        shutil.copytree(pristine, run.checkpoints)
        if not killed_at(run.checkpoints, changes, lambda: trainer._save_checkpoint(trainer.model, trial=None)):
            break
        newest.append(check_last(run))
    assert len(newest) > 25, "it was not killed at every change of a file"
    assert newest == sorted(newest)
    assert (newest[0], newest[-1]) == (2, step)
    assert [path.name for path in run.checkpoints.glob("checkpoint-*")] == [f"checkpoint-{step}"]
    assert check_last(run) == step


def check_last(run: RunDirectory) -> int:
    """The step of the checkpoint that a run would go on from, all of which must be readable."""
    from safetensors.torch import load_file

    last = run.last_checkpoint()
    assert last is not None, "all checkpoints are lost"
    for name in json.loads((last / STATE_FILE).read_text())["files"]:
        assert (last / name).is_file(), name
    assert load_file(last / "model.safetensors")
    assert load_file(last / "buffered-rank0.safetensors")
    state = json.loads((last / "trainer_state.json").read_text())
    assert state["global_step"] == read_state(last).step
    return read_state(last).step


def test_nothing_of_an_earlier_checkpoint_is_left_in_a_new_one(saved: tuple[Any, Path]) -> None:
    trainer, path = saved
    trainer.state.global_step = 7
    folder = path / "checkpoints" / "checkpoint-7"
    for mark in (False, True):
        folder.mkdir(exist_ok=True)
        (folder / "ahead-rank1.safetensors").write_text("{}")
        if mark:
            write_json(folder / STATE_FILE, {"generation": 9, "micro_step": 9, "step": 7})
        trainer._save_checkpoint(trainer.model, trial=None)
        assert is_complete(folder)
        assert not (folder / "ahead-rank1.safetensors").exists()
        assert [path.name for path in folder.parent.glob("checkpoint-*")] == ["checkpoint-7"]


def test_rotation_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    def make(*steps: int, broken: tuple[int, ...] = ()) -> set[str]:
        for step in steps:
            folder = tmp_path / f"checkpoint-{step}"
            folder.mkdir(exist_ok=True)
            if step not in broken:
                write_json(folder / STATE_FILE, {"generation": 1, "micro_step": 1, "step": step})
        return {path.name for path in tmp_path.iterdir()}

    def left() -> list[int]:
        return sorted(int(path.name.split("-")[1]) for path in tmp_path.iterdir())

    newest, best = tmp_path / "checkpoint-8", tmp_path / "checkpoint-2"
    make(2, 4, 6, 8, 10, broken=(6,))
    rotate(tmp_path, None, newest=newest, best=[best])
    rotate(tmp_path, 0, newest=newest, best=[best])
    rotate(tmp_path, 5, newest=newest, best=[best])
    assert left() == [2, 4, 6, 8, 10]
    rotate(tmp_path, 4, newest=newest, best=[best])
    assert left() == [2, 4, 8, 10], "what is not complete goes first"
    rotate(tmp_path, 3, newest=newest, best=[best])
    assert left() == [2, 4, 8], "then what a resumed run has left behind"
    rotate(tmp_path, 1, newest=newest, best=[best])
    assert left() == [2, 8]
    rotate(tmp_path, 1, newest=newest, best=[tmp_path / "checkpoint-99"])
    assert left() == [8]


def test_the_best_model_is_loaded_at_the_end_and_stays(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    """The reward of each evaluation is set: the first one is the best."""
    import torch
    from safetensors.torch import load_file

    given = iter([0.9, 0.1, 0.2, 0.3])

    def reward(completions: list[str], **_: Any) -> list[float]:
        if trainer.model.training:
            return [float(place % 3) for place in range(len(completions))]
        return [next(given)] * len(completions)

    trainer = make_trainer(
        tiny_policy(),
        tmp_path,
        Memory(),
        reward=reward,
        evaluated=1,
        per_device_eval_batch_size=4,
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="reward",
        greater_is_better=True,
    )
    trainer.train()
    assert trainer.args.save_total_limit == 1
    assert trainer.state.best_global_step == 1
    assert is_complete(tmp_path / "checkpoint-1")
    best = load_file(tmp_path / "checkpoint-1" / "model.safetensors")
    weights = dict(trainer.model.named_parameters())
    assert all(torch.equal(weights[name], value) for name, value in best.items())


def test_a_run_that_was_killed_at_its_end_makes_no_further_step(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    """Three steps, two in an epoch: transformers alone would go on to the fourth. The checkpoint was just being written
    anew."""
    settings: dict[str, Any] = {"max_steps": 3, "save_strategy": "steps", "save_steps": 3}
    first = make_trainer(tiny_policy(), tmp_path, Memory(), per_device_train_batch_size=8, **settings)
    first.train()
    again = Memory()
    second = make_trainer(tiny_policy(), tmp_path, again, per_device_train_batch_size=8, **settings)
    (tmp_path / "checkpoint-3").rename(tmp_path / "checkpoint-3.old")
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3.old"))
    assert second.state.global_step == 3
    assert not again.steps
    assert not again.generations
