"""The quickstart's own configuration, shortened: it repeats exactly, and ends with what it promises."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascent.cli import main
from ascent.errors import InputError
from ascent.models.starter.building import Recipe, starter_folder
from ascent.models.starter.warm_start import Schedule
from ascent.tracking.run_directory import RunDirectory, read_json_lines

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]
Ascent = Callable[..., subprocess.CompletedProcess[str]]
QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart.yaml"
TIMED = {"times", "engine", "device", "step_time"}


@pytest.fixture(scope="module")
def short_starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A starter after a few steps: it writes programs, hardly any of them right."""
    recipe = Recipe(schedule=Schedule(steps=12, batch=16))
    return starter_folder(recipe, tmp_path_factory.mktemp("starter"))


def numbers(run: Path) -> list[dict[str, Any]]:
    lines = read_json_lines(run / "metrics.jsonl")
    apart = ("shapes/", "time/", "signals/sandbox_seconds")  # of the process, not of the run
    return [
        {key: value for key, value in line.items() if key not in TIMED and not key.startswith(apart)} for line in lines
    ]


def test_the_same_seed_gives_the_same_numbers(
    ascent: Ascent, short_starter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once in a process of its own, once in this one: nothing depends on hash seeds or on what ran before."""
    shortened = (
        f"model.path={short_starter}",
        f"tracking.folder={tmp_path}",
        "rollout.engine=transformers",
        "trainer.max_steps=2",
        "trainer.per_device_train_batch_size=16",
        "tracking.eval_tasks=3",
        "tracking.eval_samples=2",
        "reward.functions=[code, tests.small_trainer:vowels]",  # even a starter of so few steps earns of the latter
    )
    done = ascent("train", QUICKSTART, *shortened, "tracking.name=one")
    assert done.returncode == 0, done.stderr
    assert main(["train", str(QUICKSTART), *shortened, "tracking.name=two"]) == 0, capsys.readouterr().err
    first, second = numbers(tmp_path / "one"), numbers(tmp_path / "two")
    assert len(first) == 2
    assert first == second
    assert any(line["grad_norm"] for line in first), "there was something to learn, so the weights moved"
    evaluations = [(tmp_path / name / "evaluation.json").read_text() for name in ("one", "two")]
    assert evaluations[0] == evaluations[1]
    assert "Held-out tasks" in done.stdout
    assert "What next" in done.stdout
    assert (tmp_path / "two" / "curve.svg").is_file()
    assert {"prompt", "completion"} <= set(json.loads(evaluations[0])["after"]["results"][0])


def test_a_resumed_run_still_has_its_evaluation_before(tmp_path: Path) -> None:
    from ascent.training.evaluation import Evaluation, TaskResult, save_evaluations, saved_before

    run = RunDirectory(tmp_path)
    assert saved_before(run) is None
    before = Evaluation((TaskResult("a", "lists", "# a\ndef f(x):", 1.0, 0.25, "\n    return x"),))
    save_evaluations(run, before, None)
    assert saved_before(run) == before
    run.evaluation.write_text('{"before": {"results": [{"task_id": 1}]}}')
    with pytest.raises(InputError, match=r"evaluation\.json is not what a run writes"):
        saved_before(run)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_quickstart_at_least_doubles_its_pass_rate(ascent: Ascent, tmp_path: Path) -> None:
    done = ascent("train", QUICKSTART, f"tracking.folder={tmp_path}", "tracking.name=run", timeout=7000)
    assert done.returncode == 0, done.stderr
    evaluation = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    before, after = (
        sum(task["sampled"] for task in evaluation[when]["results"]) / len(evaluation[when]["results"])
        for when in ("before", "after")
    )
    assert after >= 2 * before
    assert after >= 0.75
