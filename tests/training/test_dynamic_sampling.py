"""Dynamic sampling in the trainer: which groups are trained on, what becomes of the others, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.far_engine import FarEngine
from tests.small_trainer import Memory, make_trainer

from ascent.errors import InputError
from ascent.tracking.rollouts import RolloutRecord

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
SERVED: Mapping[str, Any] = {
    "use_vllm": True,
    "vllm_mode": "server",
    "seeded_sampling": True,
    "vllm_importance_sampling_correction": False,  # the stand-in's log-probabilities are made up
}


def number_of(task: str) -> int:
    return int(task.split("/")[1])


def even_tasks_teach(completions: list[str], task_id: list[str], **_: Any) -> list[float]:
    """Every completion of an odd task earns the same."""
    return [
        0.5 if number_of(task) % 2 else len(set(text)) / 10 for text, task in zip(completions, task_id, strict=True)
    ]


def nothing_teaches(completions: list[str], **_: Any) -> list[float]:
    return [1.0] * len(completions)


def records(memory: Memory) -> list[RolloutRecord]:
    return [record for _, generation, _ in memory.generations for record in generation]


def metric(memory: Memory, name: str) -> list[float | None]:
    return [step.metrics[name] for step in memory.steps]


def test_groups_without_signal_are_replaced_and_recorded(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    memory = Memory()
    called: Counter[str] = Counter()

    def reward(completions: list[str], task_id: list[str], **more: Any) -> list[float]:
        called.update(task_id)
        return even_tasks_teach(completions, task_id, **more)

    make_trainer(tiny_policy(), tmp_path, memory, reward=reward, max_resample_factor=4.0).train()
    kept = [record for record in records(memory) if record.kept]
    dropped = [record for record in records(memory) if not record.kept]
    assert len(kept) == 4 * 8
    assert all(number_of(record.task_id) % 2 == 0 for record in kept)
    assert all(number_of(record.task_id) % 2 == 1 and record.advantage is None for record in dropped)
    assert {record.dropped_why for record in dropped} == {"no signal: all scores of its group are equal"}
    assert {record.reward for record in dropped} == {0.5}
    assert metric(memory, "frac_reward_zero_std") == [0, 0, 0, 0]
    assert sum(called.values()) == len(kept) + len(dropped), "each completion is scored once"
    assert sum(filter(None, metric(memory, "sampling/groups_dropped"))) * 4 == len(dropped)
    assert sum(filter(None, metric(memory, "sampling/groups_drawn"))) * 4 == len(kept) + len(dropped)
    passes = Counter(record.task_id for record in records(memory) if record.index == 0)
    assert max(passes.values()) - min(passes.values()) <= 1, "each task once before one comes again"


def test_the_factor_bounds_what_is_drawn_and_an_alarm_says_when_nothing_is_learned(
    tiny_policy: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = Memory()
    make_trainer(tiny_policy(), tmp_path, memory, reward=nothing_teaches, max_resample_factor=2.0, max_steps=7).train()
    told = capsys.readouterr().err
    assert metric(memory, "sampling/groups_drawn") == [4] * 7
    assert metric(memory, "sampling/groups_without_signal") == [2] * 7
    assert metric(memory, "sampling/groups_dropped") == [2] * 7
    assert told.count("as many as max_resample_factor allows") == 1
    assert told.count("ALARM") == 1, "once, not in each generation"
    assert "nothing has been learned in 3 generations" in told


def test_groups_that_nobody_scores_are_dropped_with_that_reason(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    def reward(completions: list[str], task_id: list[str], **_: Any) -> list[float | None]:
        own = even_tasks_teach(completions, task_id)
        return [None if number_of(task) == 2 else each for each, task in zip(own, task_id, strict=True)]

    memory = Memory()
    make_trainer(tiny_policy(), tmp_path, memory, reward=reward, max_resample_factor=6.0).train()
    reasons = {record.task_id: record.dropped_why for record in records(memory) if not record.kept}
    assert reasons["add/2"] == "not scored by any reward function"
    assert all(record.task_id != "add/2" for record in records(memory) if record.kept)


def test_all_kinds_of_reward_functions_give_what_trl_has_of_them(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    """Coroutines, models and plain functions, in the thread that scores; what they log reaches TRL."""
    import torch
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(tiny_policy(), num_labels=1)
    threads: set[str] = set()

    async def slow(completions: list[str], **_: Any) -> list[float]:
        await asyncio.sleep(0)
        return [float(len(set(text))) for text in completions]

    def logging(completions: list[str], log_extra: Any, log_metric: Any, trainer_state: Any, **_: Any) -> list[float]:
        threads.add(threading.current_thread().name)
        log_extra("letters", [text[:1] for text in completions])
        log_metric("first", float(trainer_state.global_step))
        return [0.0] * len(completions)

    memory = Memory()
    trainer = make_trainer(
        tiny_policy(), tmp_path, memory, reward=[model, slow, logging], max_resample_factor=2.0, log_completions=True
    )
    trainer.train()
    assert threads == {"ascent-scoring"}
    assert metric(memory, "first") == [0, 1, 2, 3]
    kept = [record for record in records(memory) if record.kept]
    assert [record.completion[:1] for record in kept][-8:] == list(trainer._logs["extra"]["letters"])[-8:]
    for record in kept[:4]:
        ids = trainer.processing_class(record.prompt + record.completion, return_tensors="pt").input_ids
        with torch.inference_mode():
            expected = model(ids).logits[0, 0].item()
        assert record.rewards[trainer.reward_func_names[0]] == pytest.approx(expected, rel=1e-3, abs=1e-5)
        assert record.rewards["slow"] == len(set(record.completion))


def test_sampled_ahead_generations_are_refilled_likewise(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    def run(folder: str, **more: Any) -> list[tuple[Any, ...]]:
        memory = Memory()
        engine = FarEngine(seconds=0.001)
        settings = {**SERVED, "max_steps": 6, "save_steps": 2, "save_strategy": "steps", "max_resample_factor": 4.0}
        trainer = make_trainer(
            tiny_policy(), tmp_path / folder, memory, reward=even_tasks_teach, engine=engine, staleness=1, **settings
        )
        trainer.train(**more)
        assert metric(memory, "frac_reward_zero_std") == [0] * len(memory.steps)
        assert metric(memory, "rollout/dropped_completions") == [0] * len(memory.steps)
        assert metric(memory, "rollout/staleness") == [0, 1, 1, 1, 0, 1][-len(memory.steps) :], "an epoch is 4 steps"
        return [
            (each.group_id, each.index, tuple(each.completion_ids), each.kept, each.advantage, each.weight_version)
            for each in records(memory)
        ]

    whole = run("whole")
    assert {int(group.split("-")[0]) for group, *_ in whole} == set(range(6))
    assert run("again") == whole, "however fast things came back"
    resumed = run("whole", resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert resumed == [each for each in whole if int(each[0].split("-")[0]) >= 2]


def test_a_reward_that_says_when_its_verdicts_are_there_is_not_called_before(
    tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    class Judged:
        """Verdicts on task 0 take long; those of others are there at once."""

        __name__ = "judged"

        def __init__(self) -> None:
            self.ready = threading.Event()
            self.called: list[str] = []

        def start(self, row: Mapping[str, Any], text: str) -> None: ...

        def watch(self, row: Mapping[str, Any], text: str) -> Callable[[], bool]:
            return self.ready.is_set if number_of(row["task_id"]) == 0 else lambda: True

        def __call__(self, completions: list[str], task_id: list[str], **more: Any) -> list[float]:
            self.called += sorted(set(task_id))
            if len(self.called) == 3:  # all that don't wait
                assert not self.ready.is_set()
                self.ready.set()
            return even_tasks_teach(completions, task_id, **more)

    judged = Judged()
    make_trainer(
        tiny_policy(), tmp_path, reward=judged, max_resample_factor=4.0, shuffle_dataset=False, max_steps=1,
        per_device_train_batch_size=16, gradient_accumulation_steps=1,
    ).train()  # fmt: skip
    assert judged.called[:4] == ["add/1", "add/2", "add/3", "add/0"]
    assert judged.called[4:] == ["add/4", "add/5", "add/6", "add/7"][: len(judged.called) - 4]


def test_one_that_fails_ends_the_run_with_its_place(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    def broken(completions: list[str], **_: Any) -> list[float]:
        raise ZeroDivisionError("no such thing")

    def short(completions: list[str], **_: Any) -> list[float]:
        return [1.0]

    for reward, expected in (
        (
            broken,
            r"'broken' failed \((task add/\d|among 2 tasks)\) at .*sampling.py:\d+: ZeroDivisionError: no such",
        ),
        (short, r"'short' gave 1 rewards for [48] completions"),
    ):
        trainer = make_trainer(tiny_policy(), tmp_path, reward=reward, max_resample_factor=2.0)
        with pytest.raises(InputError, match=expected):
            trainer.train()
        assert trainer.phase in {"generate", "reward_exposed"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_resample_factor": 0.5}, "should be at least 1"),
        ({"max_resample_factor": float("nan")}, "should be at least 1"),
        ({"max_resample_factor": 1.2}, "no group could be replaced"),
        ({"curriculum": True}, "no meaning without dynamic sampling"),
        ({"max_surplus_age": 1}, "no meaning without dynamic sampling"),
        ({"max_resample_factor": 2.0, "max_surplus_age": 1}, "need the correction"),
        ({"max_resample_factor": 2.0, "max_surplus_age": -1}, "should be 0 or more"),
        ({"max_resample_factor": 2.0, "plain": True}, "max_resample_factor would not be used"),
    ],
)
def test_settings_that_can_t_be_had_are_refused(
    settings: dict[str, Any], expected: str, tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=expected):
        make_trainer(tiny_policy(), tmp_path, **settings)


def test_a_stream_of_rows_is_refused(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    from datasets import IterableDataset

    from ascent import GRPOConfig, GRPOTrainer

    def rows() -> Iterator[dict[str, str]]:
        yield {"prompt": "def f(a):"}

    arguments = GRPOConfig(str(tmp_path), max_steps=1, max_resample_factor=2.0, report_to="none", bf16=False)
    with pytest.raises(InputError, match="prompts are drawn by their number"):
        GRPOTrainer(str(tiny_policy()), nothing_teaches, arguments, train_dataset=IterableDataset.from_generator(rows))


def test_surplus_is_trained_on_while_it_is_young_enough(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    def reward(completions: list[str], task_id: list[str], trainer_state: Any, **_: Any) -> list[float]:
        """Odd tasks have signal from the fourth step on: more than the generations before let expect."""
        if trainer_state.global_step < 3:
            return even_tasks_teach(completions, task_id)
        return [len(set(text)) / 10 for text in completions]

    def run(folder: str, age: int, **more: Any) -> tuple[Memory, list[tuple[Any, ...]]]:
        memory = Memory()
        settings = {**SERVED, "vllm_importance_sampling_correction": True, "max_resample_factor": 4.0}
        settings |= {"max_surplus_age": age, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 1}
        settings |= {"max_steps": 8, "save_steps": 1, "save_strategy": "steps", "shuffle_dataset": True}
        output = tmp_path / folder
        make_trainer(tiny_policy(), output, memory, reward=reward, engine=FarEngine(), **settings).train(**more)
        return memory, [
            (
                each.group_id,
                each.index,
                tuple(each.completion_ids),
                each.kept,
                each.advantage,
                each.reward,
                each.generation,
            )
            for each in records(memory)
        ]

    memory, whole = run("whole", age=1)
    left = metric(memory, "sampling/surplus")
    assert any(left), "nothing was left over"
    assert not metric(memory, "sampling/groups_without_signal")[-1]
    ages = {each.step - 1 - each.weight_version for each in records(memory) if each.kept}
    assert ages == {0, 1}
    assert max(Counter(each[:2] for each in whole).values()) == 1, "no completion is trained on twice"
    at = next(step for step, count in enumerate(left, start=1) if count)
    assert (tmp_path / "whole" / f"checkpoint-{at}" / "surplus-rank0.safetensors").is_file()
    _, resumed = run("whole", age=1, resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{at}"))
    assert resumed == [each for each in whole if each[-1] >= at]
    without, _ = run("without", age=0)
    assert metric(without, "sampling/surplus") == [0] * 8


def test_a_checkpoint_that_fits_no_more_is_told_or_refused(
    tiny_policy: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"max_steps": 2, "save_steps": 1, "save_strategy": "steps", "reward": even_tasks_teach}
    make_trainer(tiny_policy(), tmp_path, **settings).train()
    first = tmp_path / "checkpoint-1"
    settings["max_resample_factor"] = 4.0
    make_trainer(tiny_policy(), tmp_path, **settings).train(resume_from_checkpoint=str(first))
    assert "made without dynamic sampling" in capsys.readouterr().err
    kept = tmp_path / "checkpoint-2" / "drawn-rank0.json"
    kept.write_text(kept.read_text().replace('"rows": 8', '"rows": 9'))
    settings["max_steps"] = 3
    trainer = make_trainer(tiny_policy(), tmp_path, **settings)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert "an order of their own" in capsys.readouterr().err
    kept = tmp_path / "checkpoint-3" / "drawn-rank0.json"
    kept.write_text("[]")
    settings["max_steps"] = 4
    with pytest.raises(InputError, match=r"drawn-rank0\.json is not what a run writes"):
        make_trainer(tiny_policy(), tmp_path, **settings).train(resume_from_checkpoint=str(kept.parent))
