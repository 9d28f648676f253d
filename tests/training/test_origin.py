"""What a run writes down when it starts, so that its weights can say where they come from."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.models.digests import weights_digest
from ascent.sandbox.types import FunctionTest
from ascent.tasks.digests import tasks_digest
from ascent.tracking import run_directory
from ascent.tracking.run_directory import STATE_FILE, RunDirectory, write_json
from ascent.training.origin import read_origin, record_origin
from ascent.types import Task

if TYPE_CHECKING:
    from ascent.training.policy_tasks import RunTasks

VISIBLE = FunctionTest(function="f", args=({1: {"x", "y"}},), expected=(1, float("inf")))
TASK = Task("a", "# one\ndef f(x):", (VISIBLE,))


def tasks(*train: Task) -> RunTasks:
    from ascent.training.policy_tasks import RunTasks

    return RunTasks(train, (TASK,), 10, ())


def checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"checkpoint-{step}"
    path.mkdir()
    write_json(path / STATE_FILE, {"generation": step, "micro_step": step, "step": step})
    return path


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return run_directory.create(tmp_path, "run")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.mark.torch
def test_a_resumed_run_keeps_its_origin_and_adds_what_changed(run: RunDirectory, base: Path, tmp_path: Path) -> None:
    config = RunConfig.model_validate({"model": {"path": str(base)}})
    assert read_origin(run) is None
    record_origin(run, config, base, tasks(TASK), checkpoint=None)
    first = read_origin(run)
    assert first is not None
    assert first["base"]["digest"] == weights_digest(base)
    (base / "model.safetensors").write_bytes(b"others")
    record_origin(run, config, base, tasks(TASK), checkpoint=checkpoint(tmp_path, 4))
    assert read_origin(run) == first, "nothing that counts has changed, and it started from the first base"
    other = replace(TASK, prompt="# two\ndef f(x):")
    record_origin(run, config, base, tasks(TASK, other), checkpoint=checkpoint(tmp_path, 6))
    changed = read_origin(run)
    assert changed is not None
    assert changed["base"] == first["base"]
    assert [(each["since_step"], each["train"]["count"]) for each in changed["tasks"]] == [(0, 1), (6, 2)]
    record_origin(run, config, base, tasks(TASK), checkpoint=tmp_path / "checkpoint-4")
    assert read_origin(run) == first, "what lay beyond the checkpoint didn't happen"
    record_origin(run, config, base, tasks(TASK), checkpoint=None)
    anew = read_origin(run)
    assert anew is not None
    assert anew["base"]["digest"] != first["base"]["digest"], "it starts anew"


def test_nonsense_is_refused(run: RunDirectory) -> None:
    (run.path / "origin.json").write_text('{"base": 1}')
    with pytest.raises(InputError, match="is not what a run writes"):
        read_origin(run)


def test_the_digest_is_of_every_part_of_a_task_and_of_nothing_else() -> None:
    same = replace(TASK)
    assert tasks_digest([TASK]) == tasks_digest([same])
    changes = [
        replace(TASK, prompt="other"),
        replace(TASK, visible_tests=()),
        replace(TASK, hidden_tests=TASK.visible_tests),
        replace(TASK, visible_tests=(replace(VISIBLE, expected=(1, 2.0)),)),
    ]
    digests = [tasks_digest([each]) for each in (TASK, *changes)]
    digests += [tasks_digest([]), tasks_digest([TASK, changes[0]]), tasks_digest([changes[0], TASK])]
    assert len(set(digests)) == len(digests)
    code = "from tests.training.test_origin import TASK, tasks_digest; print(tasks_digest([TASK]))"
    found = set()
    for seed in ("1", "2", "3"):  # the order of a set
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        root = Path(__file__).parents[2]
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=True
        )
        found.add(done.stdout.strip())
    assert found == {digests[0]}
