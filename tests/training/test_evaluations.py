"""Evaluations: every completion kept, ids that stay unique, the same draws, and a training that doesn't notice."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.run_config import write_config
from tests.small_trainer import Memory, make_trainer, vowels

from ascent.errors import InputError
from ascent.tracking import run_directory
from ascent.tracking.rollouts import read_rollouts
from ascent.tracking.run_directory import RunDirectory, read_json_lines

pytestmark = pytest.mark.torch


def own_metrics(memory: Memory) -> list[dict[str, Any]]:
    apart = ("shapes/", "time/")  # of the process
    return [
        {name: value for name, value in step.metrics.items() if not name.startswith(apart) and name != "step_time"}
        for step in memory.steps
    ]


def numpy_state() -> list[int]:
    import numpy as np

    state: Any = np.random.get_state()
    return [*state[1].tolist(), *state[2:]]


def test_a_training_does_not_notice_its_evaluations(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    """Losses, weights, random states and seconds are those of a training that is never evaluated."""
    import numpy as np
    import torch

    alone, evaluated = Memory(), Memory()
    without = make_trainer(tiny_policy(), tmp_path / "1", alone, max_steps=3)
    without.train()
    states = random.getstate(), torch.get_rng_state(), numpy_state()

    def slow_reward(completions: list[str], **_: Any) -> list[float]:
        if not trainer.model.training:
            random.random()
            np.random.random()
            time.sleep(0.2)
        return vowels(completions)

    slow_reward.__name__ = "vowels"
    began = time.perf_counter()
    trainer = make_trainer(
        tiny_policy(),
        tmp_path / "2",
        evaluated,
        max_steps=3,
        reward=slow_reward,
        evaluated=3,
        eval_strategy="steps",
        eval_steps=1,
        eval_on_start=True,
        per_device_eval_batch_size=8,
    )
    trainer.train()
    assert own_metrics(evaluated) == own_metrics(alone)
    for weight, other in zip(trainer.model.parameters(), without.model.parameters(), strict=True):
        assert torch.equal(weight, other)
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    assert numpy_state() == states[2]
    assert len(evaluated.evaluations) == 4
    for record in evaluated.evaluations:
        assert record.seconds > 0.4, "two batches"
        assert record.engine is not None
        assert record.engine.running == 8
        assert record.completions == 12
    seconds = sum(step.times.step for step in evaluated.steps) + sum(each.seconds for each in evaluated.evaluations)
    assert seconds <= time.perf_counter() - began, "seconds of evaluations are counted for steps too"
    for step in evaluated.steps:
        assert step.engine is not None
        assert step.engine.latency_p95 <= step.times.generate


def test_every_completion_of_trl_s_evaluations_is_kept(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    memory = Memory()
    trainer = make_trainer(
        tiny_policy(),
        tmp_path,
        memory,
        evaluated=3,
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        eval_on_start=True,
        per_device_eval_batch_size=4,
        learning_rate=0.0,  # the policy stays what it is, so that all evaluations sample the same
    )
    trainer.train()
    trainer.evaluate(metric_key_prefix="eval_again")
    trainer.predict(trainer.eval_dataset)
    evaluations = [records for _, records, evaluation in memory.generations if evaluation]
    assert [len(records) for records in evaluations] == [12] * 5, "three batches each"
    records = [record for each in evaluations for record in each]
    trained = [record for _, each, evaluation in memory.generations if not evaluation for record in each]
    assert len({record.sample_id for record in records + trained}) == len(records) + len(trained)
    groups = Counter(record.group_id for record in records + trained)
    assert set(groups.values()) == {4}
    assert not any(record.kept or record.advantage is not None for record in records)
    assert [record.step for record in memory.evaluations] == [0, 1, 2, 2, 2]
    assert [record.name for record in memory.evaluations] == ["eval", "eval", "eval", "eval_again", "test"]
    assert {record.evaluation for record in evaluations[3]} == {"eval_again"}
    assert evaluations[0][5].sample_id == "run/eval-0/0/5"
    assert evaluations[2][5].group_id == "eval-2-1"
    texts = [[tuple(record.completion_ids.tolist()) for record in each] for each in evaluations]
    assert texts[0] == texts[1] == texts[2], "the same policy, the same draws"
    assert len(set(texts[0])) > 6
    assert texts[3] != texts[0], "of another name"
    for record in memory.evaluations[:3]:
        assert record.metrics["eval_loss"] is not None
        assert record.metrics["eval_reward"] == memory.evaluations[0].metrics["eval_reward"]
    logged = [entry["eval_reward"] for entry in trainer.state.log_history if "eval_reward" in entry]
    assert logged[0] == memory.evaluations[0].metrics["eval_reward"]


def test_a_batch_of_broken_groups_is_refused(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    trainer = make_trainer(tiny_policy(), tmp_path, evaluated=3, eval_on_start=True, per_device_eval_batch_size=6)
    with pytest.raises(InputError, match=r"batch of 6 completions .* must be divisible by num_generations_eval=4"):
        trainer.train()


def test_masked_completions_are_not_called_trained_on(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    memory = Memory()
    make_trainer(tiny_policy(), tmp_path, memory, mask_truncated_completions=True, max_steps=1).train()
    _, records, _ = memory.generations[0]
    assert {record.finish_reason for record in records} == {"length"}
    for record in records:
        assert not record.kept
        assert "mask_truncated_completions" in (record.dropped_why or "")


def evaluations_of(run: RunDirectory) -> dict[str, list[dict[str, Any]]]:
    """Evaluation -> its rows, by the names of the files."""
    return {path.name: read_rollouts(path) for path in sorted(run.rollouts.glob("eval-*"))}


@pytest.fixture
def start_run(
    tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> Callable[..., tuple[RunDirectory, Any]]:
    """start_run(tracking={...}, **trainer) -> the run directory and what became of it; again=True resumes it."""
    from ascent import config
    from ascent.training.run import train

    def start(*, again: bool = False, tracking: dict[str, Any] | None = None, held_out: int = 2, **trainer: Any) -> Any:
        file = write_config(tmp_path / "c.yaml", tiny_policy(), task_file, **trainer)
        settings = yaml.safe_load(file.read_text())
        settings["tracking"] |= tracking or {}
        settings["tasks"]["held_out"] = held_out
        settings["trainer"]["disable_tqdm"] = True
        loaded = config.RunConfig.model_validate(settings)
        if not again:
            run = run_directory.create(Path(loaded.tracking.folder), "run")
            run.config.write_text(loaded.to_yaml(), encoding="utf-8")
        run = RunDirectory(Path(loaded.tracking.folder) / "run")
        return run, train(loaded, run, resume=again)

    return start


def test_all_evaluations_of_a_run_are_kept_also_when_it_goes_on(start_run: Callable[..., Any]) -> None:
    """Before, on start, in between and after; then two steps more."""
    settings = {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True, "save_steps": 2}
    run, _ = start_run(max_steps=2, learning_rate=0.0, **settings)
    first = evaluations_of(run)
    assert list(first) == [
        "eval-000000-step000000-rank0.parquet",
        "eval-000001-step000000-rank0.parquet",
        "eval-000002-step000002-rank0.parquet",
        "eval-000003-step000002-rank0.parquet",
    ]
    assert [{row["evaluation"] for row in rows} for rows in first.values()] == [
        {"before"},
        {"eval"},
        {"eval"},
        {"after"},
    ]
    assert [len(rows) for rows in first.values()] == [2 * (1 + 2), 8, 8, 2 * (1 + 2)]
    before, _, _, after = ([row["completion_ids"] for row in rows] for rows in first.values())
    assert before == after, "the policy has not changed, so nothing else may differ"
    lines = read_json_lines(run.evaluations)
    assert [(line["evaluation"], line["name"], line["step"]) for line in lines] == [
        (0, "before", 0),
        (1, "eval", 0),
        (2, "eval", 2),
        (3, "after", 2),
    ]
    assert "sampled" in lines[0]
    assert {"eval_loss", "eval_reward", "eval_pass_rate"} <= set(lines[1])
    run, _ = start_run(again=True, max_steps=4, **settings)
    second = evaluations_of(run)
    assert {name: second[name] for name in first} == first, "nothing moves, nothing is overwritten"
    assert list(second)[4:] == [
        "eval-000004-step000002-rank0.parquet",  # on start, of the resumed run
        "eval-000005-step000004-rank0.parquet",
        "eval-000006-step000004-rank0.parquet",
    ]
    rows = [row for each in second.values() for row in each] + read_rollouts(run.rollouts)
    assert len({row["sample_id"] for row in rows}) == len(rows)
    assert set(Counter((row["group_id"], row["index"]) for row in rows).values()) == {1}
    assert not (run.path / "discarded").exists()


def test_evaluating_on_start_alone(start_run: Callable[..., Any]) -> None:
    run, _ = start_run(max_steps=1, eval_on_start=True, tracking={"evaluate": False})
    assert [line["name"] for line in read_json_lines(run.evaluations)] == ["eval"]


def test_own_evaluations_are_sampled_in_batches_of_the_training_s_size(
    start_run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ascent.rollout.engines.transformers import TransformersEngine

    sizes: list[int] = []
    original = TransformersEngine.submit

    def submit(self: Any, requests: Any) -> None:
        sizes.append(sum(request.n for request in requests))
        original(self, requests)

    monkeypatch.setattr(TransformersEngine, "submit", submit)
    run, result = start_run(max_steps=1, per_device_train_batch_size=4, tracking={"eval_samples": 5})
    assert sizes == [2, 4, 4, 2, 4, 2, 4, 4, 2], "2 greedy, 10 sampled; 4 trained on; the same after"
    rows = next(iter(evaluations_of(run).values()))
    sampled = [row for row in rows if "sampled" in row["group_id"]]
    assert [(row["group_id"], row["index"]) for row in sampled] == [
        (f"eval-0-sampled-{task}", index) for task in range(2) for index in range(5)
    ]
    assert len(result.before.results) == 2


def test_held_out_tasks_that_are_not_there_are_told(start_run: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=r"evaluate on held-out tasks, but there are none"):
        start_run(max_steps=1, eval_on_start=True, held_out=0)


def test_a_run_measures_in_between_when_asked(start_run: Callable[..., Any]) -> None:
    """`tracking.eval_every`: the same tasks and draws as before and after, told task by task."""
    run, result = start_run(max_steps=3, learning_rate=0.0, tracking={"eval_every": 1})
    lines = read_json_lines(run.evaluations)
    told = [(line["name"], line["step"]) for line in lines]
    assert told == [("before", 0), ("during", 1), ("during", 2), ("after", 3)]
    texts = [[row["completion_ids"] for row in rows] for rows in evaluations_of(run).values()]
    assert texts[0] == texts[1] == texts[2] == texts[3], "the policy has not changed"
    for line in lines:
        assert len(line["results"]) == 2
        shares = [task["sampled"] for task in line["results"].values()]
        assert line["sampled"] == pytest.approx(sum(shares) / 2)
        assert {task["samples"] for task in line["results"].values()} == {2}
    assert result.after is not None
    assert {task.task_id for task in result.after.results} == set(lines[0]["results"])


def test_a_resumed_run_does_not_measure_a_step_twice(start_run: Callable[..., Any]) -> None:
    settings: dict[str, Any] = {"max_steps": 3, "save_steps": 2, "tracking": {"eval_every": 2}}
    run, _ = start_run(**settings)
    shutil.rmtree(run.checkpoints / "checkpoint-3")
    start_run(again=True, **settings)
    lines = read_json_lines(run.evaluations)
    assert [(line["name"], line["step"]) for line in lines] == [("before", 0), ("during", 2), ("after", 3)]


def test_measuring_in_between_changes_nothing(start_run: Callable[..., Any], tmp_path: Path) -> None:
    alone, _ = start_run(max_steps=3)
    alone.path.rename(tmp_path / "alone")
    run, _ = start_run(max_steps=3, tracking={"eval_every": 1})
    apart = ("shapes/", "time/", "signals/sandbox_seconds")
    figures = [
        [
            {
                name: value
                for name, value in line.items()
                if not name.startswith(apart) and name not in ("times", "engine", "device", "step_time")
            }
            for line in read_json_lines(folder / "metrics.jsonl")
        ]
        for folder in (tmp_path / "alone", run.path)
    ]
    assert figures[0] == figures[1]


def test_without_held_out_tasks_nothing_can_be_measured(start_run: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=r"tracking\.eval_every evaluates on held-out tasks, but there are none"):
        start_run(held_out=0, tracking={"eval_every": 1})


def test_the_records_of_a_run_say_what_was_asked(start_run: Callable[..., Any]) -> None:
    """Outcomes have their tests in tasks.jsonl, and each line its signals."""
    from ascent.tracking.task_file import read_tasks

    run, _ = start_run(max_steps=2)
    tasks = {line.task_id: line for line in read_tasks(run.tasks)}
    assert sorted(line.split for line in tasks.values()) == ["held_out"] * 2 + ["train"] * 6
    for row in read_rollouts(run.rollouts):
        task = tasks[row["task_id"]]
        assert row["visible_tests"] == len(task.visible_tests) == 1
        assert len(row["outcomes"]) == len(task.visible_tests) + len(task.hidden_tests)
        assert row["audit_outcomes"] is None
        assert task.prompt == row["prompt"]
    for line in read_json_lines(run.metrics):
        assert line["signals/completions"] == 8
        assert line["signals/solved"] == sum(line["signal_groups"]["solved"])
        assert line["signals/unjudged"] == 0
