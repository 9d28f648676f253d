"""Ascent's trainer in this process with the transformers engine: equal to TRL's own path, and what it records."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.far_engine import FarEngine
from tests.small_trainer import Memory, make_trainer

from ascent.config.trl_fields import NOTHING_SAVED
from ascent.errors import InputError

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]


def test_trains_as_trl_alone_does(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    """Same samples, losses, gradients and weights as with TRL's own path (plain=True), to the last bit where nothing
    is saved (tests/training/batches has what is saved)."""
    import torch

    ours = make_trainer(tiny_policy(), tmp_path / "ours", beta=0.04, **NOTHING_SAVED)
    ours.train()
    plain = make_trainer(tiny_policy(), tmp_path / "plain", beta=0.04, plain=True)
    plain.train()
    assert plain.engine is None
    compared = ("loss", "grad_norm", "reward", "reward_std", "entropy", "kl", "completions/mean_length")
    for mine, theirs in zip(ours.state.log_history[:4], plain.state.log_history[:4], strict=True):
        assert {name: mine[name] for name in compared} == {name: theirs[name] for name in compared}
    assert any(entry["loss"] != 0 for entry in ours.state.log_history[:4]), "nothing was learned, so nothing compared"
    for (name, weight), other in zip(ours.model.named_parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(weight, other), name


def test_records_every_step_and_completion(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    memory = Memory()
    trainer = make_trainer(tiny_policy(), tmp_path, memory)
    trainer.train()
    assert [record.step for record in memory.steps] == [1, 2, 3, 4]
    assert [number for number, _, evaluation in memory.generations if not evaluation] == [0, 1, 2, 3]
    for step in memory.steps:
        times = dataclasses.asdict(step.times)
        parts = sum(times[name] for name in ("generate", "reward_exposed", "logps", "update", "sync", "other"))
        assert parts == pytest.approx(times["step"], rel=1e-6)
        assert times["generate"] > 0
        assert times["update"] > 0
        assert step.metrics["loss"] == pytest.approx(trainer.state.log_history[step.step - 1]["loss"], abs=1e-6)
        assert step.metrics["grad_norm"] == trainer.state.log_history[step.step - 1]["grad_norm"]
        assert step.metrics["reward"] == pytest.approx(trainer.state.log_history[step.step - 1]["reward"])
        assert step.engine is not None
        assert step.engine.tokens_per_second > 0
        assert step.device["used_bytes"] > 0
    seen: set[str] = set()
    for number, records, _ in memory.generations:
        assert len(records) == 8
        for record in records:
            assert record.generation == number
            assert record.step == number + 1
            assert record.weight_version == number
            assert record.rewards["vowels"] == record.reward
            assert len(record.completion_ids)
            assert record.kept
            seen.add(record.sample_id)
        groups = {record.group_id for record in records}
        assert len(groups) == 2
        for group in groups:
            members = [record for record in records if record.group_id == group]
            assert sorted(record.index for record in members) == [0, 1, 2, 3]
            assert sum(record.advantage or 0 for record in members) == pytest.approx(0, abs=1e-4)
    assert len(seen) == 32
    assert memory.progress[-1] == (8, 8)


def norms(folder: Path, output: Path, **settings: Any) -> list[float]:
    """The norms of the gradients of each step."""
    memory = Memory()
    make_trainer(folder, output, memory, **settings).train()
    return [step.metrics["grad_norm"] or 0.0 for step in memory.steps]


def test_gradient_checkpointing_and_bf16_give_the_same_training(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    plain = norms(tiny_policy(), tmp_path / "1")
    assert min(plain) > 0.1
    assert norms(tiny_policy(), tmp_path / "2", gradient_checkpointing=True) == pytest.approx(plain, rel=1e-4)
    low = norms(tiny_policy(), tmp_path / "3", bf16=True, max_steps=2)
    assert 0 < abs(low[0] - plain[0]) < 0.05 * plain[0], "as in float32, but for rounding"


def test_low_rank_adapters_learn_and_the_base_stays(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig

    trainer = make_trainer(tiny_policy(), tmp_path, peft_config=LoraConfig(r=4, target_modules="all-linear"))
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(parameter, before[name]) == ("lora_" not in name), name


def test_metrics_are_a_step_s_own_whatever_logging_steps_is(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    each, rarely = Memory(), Memory()
    make_trainer(tiny_policy(), tmp_path / "1", each).train()
    make_trainer(tiny_policy(), tmp_path / "2", rarely, logging_steps=3).train()
    for name in ("reward", "loss", "entropy", "grad_norm"):
        assert [s.metrics[name] for s in each.steps] == pytest.approx([s.metrics[name] for s in rarely.steps]), name


def test_unscorable_completions_are_masked_and_told(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    def reward(completions: list[str], **_: Any) -> list[float | None]:
        return [None if place % 4 == 0 else float(place % 3) for place in range(len(completions))]

    memory = Memory()
    make_trainer(tiny_policy(), tmp_path, memory, reward=reward, max_steps=1).train()
    _, records, _ = memory.generations[0]
    masked = [record for record in records if not record.kept]
    assert len(masked) == 2
    for record in masked:
        assert record.reward is None
        assert record.advantage == 0
        assert record.dropped_why == "not scored by any reward function"


def test_reward_of_the_wrong_length_is_told(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    trainer = make_trainer(tiny_policy(), tmp_path, reward=lambda completions, **_: [1.0])
    with pytest.raises(ValueError, match="returned 1 rewards, but 8 were expected"):
        trainer.train()


def test_servers_must_be_named(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"(?s)vllm_mode=.server. needs the servers.*ascent serve MODEL"):
        make_trainer(tiny_policy(), tmp_path, use_vllm=True, vllm_mode="server")


def test_a_dataset_without_task_ids_is_told(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    from ascent import CodeReward
    from ascent.sandbox import FunctionTest
    from ascent.types import Task

    reward = CodeReward([Task("t", "", (FunctionTest("f", (0,), 1),), entry_point="f")])
    trainer = make_trainer(tiny_policy(), tmp_path, reward=reward)
    trainer.train_dataset = trainer.train_dataset.remove_columns("task_id")
    with pytest.raises(InputError, match="no column task_id"):
        trainer.train()
    reward.close()


def test_images_are_refused_not_dropped(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    trainer = make_trainer(tiny_policy(), tmp_path)
    with pytest.raises(InputError, match="images in prompts"):
        trainer._generate_single_turn([[5]], [["picture"]], {}, 4)


def test_resumed_training_is_the_same_training(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    import torch

    whole = Memory()
    through = make_trainer(tiny_policy(), tmp_path / "whole", whole)
    through.train()
    parted = Memory()
    make_trainer(tiny_policy(), tmp_path / "parted", parted, save_strategy="steps", save_steps=2).train()
    second = make_trainer(tiny_policy(), tmp_path / "parted", parted, save_strategy="steps", save_steps=2)
    second.train(resume_from_checkpoint=str(tmp_path / "parted" / "checkpoint-2"))
    resumed = parted.steps[4:]
    assert [record.step for record in resumed] == [3, 4]
    for mine, theirs in zip(resumed, whole.steps[2:], strict=True):
        assert mine.metrics["loss"] == theirs.metrics["loss"]
        assert mine.metrics["reward"] == theirs.metrics["reward"]
        assert mine.generation == theirs.generation
    for weight, other in zip(second.model.parameters(), through.model.parameters(), strict=True):
        assert torch.equal(weight, other)


@pytest.mark.parametrize(
    "settings",
    [
        {
            "gradient_accumulation_steps": 1,
            "steps_per_generation": 2,
            "num_iterations": 2,
            "beta": 0.04,
            "save_steps": 2,
        },
        {"gradient_accumulation_steps": 3, "steps_per_generation": 4, "logging_steps": 2, "save_steps": 1},
    ],
    ids=["two steps twice", "generations end within steps"],
)
def test_generations_that_feed_several_steps_resume_in_the_middle(
    settings: dict[str, Any], tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    """A checkpoint falls into a generation: what is left of it is trained on, not sampled again, bit for bit."""
    import torch

    whole, again = Memory(), Memory()
    through = make_trainer(tiny_policy(), tmp_path, whole, max_steps=6, save_strategy="steps", **settings)
    through.train()
    save_steps = settings["save_steps"]
    checkpoint = tmp_path / f"checkpoint-{save_steps}"
    assert (checkpoint / "buffered-rank0.safetensors").is_file()
    second = make_trainer(tiny_policy(), tmp_path / "other", again, max_steps=6, **settings)
    second.train(resume_from_checkpoint=str(checkpoint))
    assert len(again.steps) == 6 - save_steps
    for mine, theirs in zip(again.steps, whole.steps[save_steps:], strict=True):
        assert (mine.step, mine.generation) == (theirs.step, theirs.generation)
        assert own_metrics(mine) == own_metrics(theirs)
        assert (mine.engine is None) == (theirs.engine is None)
    sampled = {
        number: [record.completion_ids.tolist() for record in records] for number, records, _ in whole.generations
    }
    for number, records, _ in again.generations:
        assert [record.completion_ids.tolist() for record in records] == sampled[number]
    assert len(again.generations) < len(whole.generations)
    for weight, other in zip(second.model.parameters(), through.model.parameters(), strict=True):
        assert torch.equal(weight, other)


def own_metrics(record: Any) -> dict[str, Any]:
    """A step's metrics but for those of the process: times, and shapes that were new to it."""
    return {name: value for name, value in record.metrics.items() if "time" not in name and "shapes/" not in name}


def test_many_generations_without_signal_are_told_once(
    tiny_policy: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ascent.training.batches.signal import ALARM_AFTER

    def alike(completions: list[str], **_: Any) -> list[float]:
        return [0.5] * len(completions)

    make_trainer(tiny_policy(), tmp_path, reward=alike, max_steps=ALARM_AFTER + 2).train()
    told = capsys.readouterr().err
    assert told.count("ALARM: nothing has been learned in 10 generations") == 1
    assert "max_resample_factor" in told


def test_a_step_that_never_came_to_its_end_is_recorded_and_let_go(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    from transformers import TrainerCallback

    class StopsBetweenMicroBatches(TrainerCallback):
        def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            control.should_training_stop = True
            return control

    memory = Memory()
    trainer = make_trainer(tiny_policy(), tmp_path, memory, engine=FarEngine())
    trainer.add_callback(StopsBetweenMicroBatches)
    trainer.train()
    assert not memory.steps
    trainer.remove_callback(StopsBetweenMicroBatches)
    trainer.train()
    assert len(memory.steps) == 4
    shares = [step.metrics["batch/computed_rows"] or 0.0 for step in memory.steps]
    assert max(shares) <= 1, "its rows are not trained on later"
    numbers = [number for number, _, _ in memory.generations]
    assert numbers == sorted(set(numbers))
    assert 0 in numbers, "what was sampled for it is kept"


def test_what_was_buffered_for_another_layout_is_sampled_again_with_a_note(
    tiny_policy: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"gradient_accumulation_steps": 1, "save_strategy": "steps", "save_steps": 1}
    make_trainer(tiny_policy(), tmp_path, steps_per_generation=2, max_steps=1, **settings).train()
    again = Memory()
    trainer = make_trainer(tiny_policy(), tmp_path, again, steps_per_generation=4, max_steps=2, **settings)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    said = capsys.readouterr().err
    assert "note: the checkpoint falls into a generation, which is sampled again: it was" in said
    assert "steps_per_generation=2" in said
    assert [(number, len(records)) for number, records, _ in again.generations] == [(1, 16)]
    (tmp_path / "checkpoint-1" / "buffered-rank0.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InputError, match=r"buffered-rank0\.safetensors is not what a run writes"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


def test_overridden_methods_of_trl_are_those_it_was_written_against() -> None:
    from ascent.training import trl_overrides
    from ascent.training.checkpointing import Checkpointing
    from ascent.training.trainer import GRPOTrainer
    from ascent.training.updating import Updating

    now = trl_overrides.current_digests()
    known = trl_overrides.DIGESTS
    changed = [name for name in known if now[name] not in (known[name], trl_overrides.OLDER.get(name))]
    assert not changed, f"TRL changed {changed}: read the change, adapt the override, enter the digests {now}"
    assert set(now) == set(trl_overrides.DIGESTS)
    from trl.trainer.grpo_trainer import GRPOTrainer as TRLTrainer

    inherited = {name for base in TRLTrainer.__mro__ for name in vars(base)} - set(vars(object))
    defined = {
        name for kind in (GRPOTrainer, Checkpointing, Updating) for name, value in vars(kind).items() if callable(value)
    }
    assert defined & inherited - {"__init__"} == set(trl_overrides.OVERRIDDEN)
