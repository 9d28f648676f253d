"""Runs of random settings, killed at random changes of their files and resumed: equal to the same run without kills.

Each number makes one run, always the same. Compared are all metrics but times, every completion, and the last weights.
"""

from __future__ import annotations

import functools
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.killer import killed_at

from ascent import config
from ascent.rollout.engines.transformers import TransformersEngine
from ascent.tracking import run_directory
from ascent.tracking.rollouts import read_rollouts
from ascent.tracking.run_directory import RunDirectory, read_json_lines
from ascent.types import Completion

pytestmark = pytest.mark.torch
IN_THE_DEFAULT_RUN = 2
ALL = 60
ALL_DYNAMIC = 24
Sampled = tuple[str, tuple[int, ...]]  # of which group, and its tokens


@dataclass(frozen=True)
class Plan:
    """The settings of a run, and after how many changes of its files it is killed, each time that it is started."""

    trainer: dict[str, Any]
    tracking: dict[str, Any]
    kills: tuple[int, ...]
    rewards: tuple[Any, ...] = ("code", {"function": "tests.small_trainer:vowels"})

    @classmethod
    def of(cls, number: int) -> Plan:
        draw = random.Random(number)
        slices = draw.choice([1, 2, 3, 4])
        trainer: dict[str, Any] = {
            "num_generations": 4,
            "per_device_train_batch_size": 4,
            "per_device_eval_batch_size": 4,
            "gradient_accumulation_steps": draw.choice([1, 2, 3]),
            "steps_per_generation": slices,
            "num_iterations": draw.choice([1, 1, 2]),
            "max_completion_length": draw.choice([3, 6]),
            "learning_rate": 1e-2,
            "max_steps": draw.choice([3, 4, 5]),
            "gradient_checkpointing": False,
            "disable_tqdm": True,
            "beta": draw.choice([0.0, 0.0, 0.04]),
            "mask_truncated_completions": draw.choice([False, False, True]),
            "logging_steps": draw.choice([1, 2, 3]),
            "save_steps": draw.choice([1, 2, 3]),
            "save_total_limit": draw.choice([None, 1, 2]),
            "eval_on_start": draw.choice([False, False, True]),
        }
        if draw.random() < 0.5:
            trainer |= {"eval_strategy": "steps", "eval_steps": draw.choice([1, 2])}
            if draw.random() < 0.5:
                trainer |= {"load_best_model_at_end": True, "metric_for_best_model": "reward"}
                trainer["save_steps"] = 2 * trainer["eval_steps"]
        tracking = {"evaluate": draw.random() < 0.7, "eval_samples": draw.choice([1, 3])}
        return cls(trainer, tracking, tuple(draw.randrange(110) for _ in range(draw.choice([1, 2, 3]))))

    @classmethod
    def with_dynamic_sampling(cls, number: int) -> Plan:
        """Groups are replaced, too: with the code reward alone most of them have no signal."""
        draw = random.Random(f"dynamic/{number}")
        more = {"max_resample_factor": draw.choice([2.0, 3.5, 6.0]), "curriculum": draw.random() < 0.5}
        plan = cls.of(number)
        rewards = ("code",) if draw.random() < 0.5 else ({"function": "tests.small_trainer:coarse_vowels"},)
        return replace(plan, trainer=plan.trainer | more, rewards=rewards)


class Runs:
    """Runs of one plan: `sampled` counts what the engine has given."""

    def __init__(self, plan: Plan, model: Path, tasks: Path, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.plan, self.model, self.tasks, self.folder = plan, model, tasks, folder
        self.sampled: Counter[Sampled] = Counter()
        original = TransformersEngine.poll

        def poll(engine: TransformersEngine) -> list[Completion]:
            completions = original(engine)
            self.sampled.update((each.group_id, tuple(each.token_ids.tolist())) for each in completions)
            return completions

        patch.setattr(TransformersEngine, "poll", poll)

    def make(self, name: str) -> tuple[RunDirectory, config.RunConfig]:
        self.sampled.clear()
        settings = config.RunConfig.model_validate(
            {
                "model": {"path": str(self.model)},
                "tasks": {"train": str(self.tasks), "held_out": 2},
                "reward": {"functions": list(self.plan.rewards)},
                "rollout": {"engine": "transformers"},
                "sandbox": {"require": "none", "slots": 1},
                "tracking": {"folder": str(self.folder), "name": name, **self.plan.tracking},
                "trainer": self.plan.trainer,
            }
        )
        run = run_directory.create(self.folder, name)
        run.config.write_text(settings.to_yaml(), encoding="utf-8")
        return run, settings


@pytest.mark.parametrize(
    "number",
    [number if number < IN_THE_DEFAULT_RUN else pytest.param(number, marks=pytest.mark.slow) for number in range(ALL)],
)
def test_a_run_that_is_killed_and_resumed_is_the_run_that_was_never_killed(
    number: int, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(Plan.of(number), Runs(Plan.of(number), tiny_policy(), task_file, tmp_path, monkeypatch))


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(number, marks=pytest.mark.slow) for number in range(1, ALL_DYNAMIC))]
)
def test_so_is_one_that_replaces_groups_without_signal(
    number: int, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan.with_dynamic_sampling(number)
    run = check(plan, Runs(plan, tiny_policy(), task_file, tmp_path, monkeypatch))
    assert any(line.get("sampling/groups_dropped") for line in read_json_lines(run.metrics)), "nothing was replaced"


def check(plan: Plan, runs: Runs) -> RunDirectory:
    """The run of the plan without kills, and with them."""
    from ascent.training.run import train

    tmp_path = runs.folder
    whole, settings = runs.make("run")
    train(settings, whole)
    assert in_files(whole) == runs.sampled, "a completion is lost, or kept twice"
    whole.path.rename(tmp_path / "whole")
    whole = RunDirectory(tmp_path / "whole")

    run, settings = runs.make("run")
    kills = 0
    for start, changes in enumerate(plan.kills):
        kills += killed_at(run.path, changes, functools.partial(train, settings, run, resume=start > 0))
    train(settings, run, resume=True)
    check_completions(run, runs.sampled, kills)
    assert metrics_of(run) == metrics_of(whole)
    assert trained_on(run) == trained_on(whole)
    again, once = evaluations_of(run), evaluations_of(whole)
    assert {key: again[key] for key in once} == once
    assert set(again) - set(once) <= {("eval", step) for step in range(plan.trainer["max_steps"] + 1)}, "on start"
    assert_equal_weights(run, whole)
    assert run.last_checkpoint() is not None
    limit = plan.trainer["save_total_limit"]
    if limit:
        best = int("load_best_model_at_end" in plan.trainer)
        left_by_a_kill = 1  # after the last one was complete, before the others were deleted
        assert len(list(run.checkpoints.glob("checkpoint-*"))) <= limit + best + left_by_a_kill
    return run


def in_files(run: RunDirectory) -> Counter[Sampled]:
    """Every completion in the files of a run, also of those that were discarded."""
    rows = [row for path in run.path.rglob("*.parquet") for row in read_rollouts(path)]
    return Counter((row["group_id"], tuple(row["completion_ids"])) for row in rows)


def check_completions(run: RunDirectory, sampled: Counter[Sampled], kills: int) -> None:
    """What was sampled stands in one file, but for the generation or evaluation that was under way at a kill."""
    kept = in_files(run)
    assert not kept - sampled, "more is kept than was sampled"
    lost = {group.rpartition("-")[0].removesuffix("-greedy").removesuffix("-sampled") for group, _ in sampled - kept}
    assert len(lost) <= kills
    rows = [row for path in run.rollouts.glob("*.parquet") for row in read_rollouts(path)]
    assert len({row["sample_id"] for row in rows}) == len(rows)
    assert len({(row["group_id"], row["index"]) for row in rows}) == len(rows)


def metrics_of(run: RunDirectory) -> list[dict[str, Any]]:
    # of the process, not of the run
    apart = {"times", "engine", "device", "shapes/new", "shapes/seen", "signals/sandbox_seconds"}
    return [
        {name: value for name, value in line.items() if name not in apart and "time" not in name}
        for line in read_json_lines(run.metrics)
    ]


def trained_on(run: RunDirectory) -> dict[str, dict[str, Any]]:
    """Every completion but those of evaluations, by its id, without what depends on the clock."""
    apart = {"sample_seconds", "sandbox_seconds"}
    rows = read_rollouts(run.rollouts)
    return {row["sample_id"]: {name: value for name, value in row.items() if name not in apart} for row in rows}


def evaluations_of(run: RunDirectory) -> dict[tuple[str, int], list[list[int]]]:
    """(name, step) -> the tokens of every completion."""
    found = {}
    for path in sorted(run.rollouts.glob("eval-*")):
        rows = read_rollouts(path)
        found[rows[0]["evaluation"], rows[0]["step"]] = [row["completion_ids"] for row in rows]
    return found


def assert_equal_weights(run: RunDirectory, whole: RunDirectory) -> None:
    import torch
    from safetensors.torch import load_file

    mine, other = (load_file(each.path / "model" / "model.safetensors") for each in (run, whole))
    for name, weight in mine.items():
        assert torch.equal(weight, other[name]), name
    if whole.evaluation.is_file():
        first, second = (json.loads(each.evaluation.read_text()) for each in (run, whole))
        assert first == second
