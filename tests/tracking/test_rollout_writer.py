"""Files that are written beside the training: whole before anything counts them, and a failure ends the run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tracking.test_rollouts import record

from ascent.errors import InputError
from ascent.tracking import rollout_writer
from ascent.tracking.rollouts import read_rollouts, write_rollouts
from ascent.tracking.run_directory import RunDirectory, create, read_json_lines
from ascent.training.records.recorder import EvaluationRecord, RunRecorder, StepRecord
from ascent.types import StepTimes

pytestmark = pytest.mark.torch

STEP = StepRecord(1, 4, 0.5, 0, {"loss": 0.0}, StepTimes(1.0, 0, 0, 0, 1.0, 0, 0), None, {})
EVALUATION = EvaluationRecord(0, "before", 0, 0, 1, 1.0, {}, None)


COUNTING: dict[str, Callable[[RunRecorder], object]] = {
    "a step's line": lambda recorder: recorder.step(STEP),
    "a checkpoint": lambda recorder: recorder.settle(),
    "the next generation": lambda recorder: recorder.generation(1, [record()]),
    "the end": lambda recorder: recorder.close(),
}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return create(tmp_path, "run")


def fill_disk_at(path: Path) -> None:
    """The next file that is written to `path` meets a device without room."""
    path.with_name(f".{path.name}.tmp").symlink_to("/dev/full")


@pytest.mark.parametrize("what", COUNTING)
def test_nothing_counts_completions_before_they_are_kept(
    what: str, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = threading.Event()

    def write_later(path: Path, records: Any) -> None:
        assert may_write.wait(20)
        write_rollouts(path, records)

    monkeypatch.setattr(rollout_writer, "write_rollouts", write_later)
    recorder, file = RunRecorder(run), run.generation_rollouts(0, 0)
    recorder.generation(0, [record()])
    counting = threading.Thread(target=COUNTING[what], args=[recorder])
    counting.start()
    counting.join(0.1)
    assert counting.is_alive(), "it waits"
    assert not file.exists()
    assert not run.metrics.exists()
    may_write.set()
    counting.join(20)
    assert file.is_file()
    assert run.metrics.exists() == (what == "a step's line")
    recorder.close()


@pytest.mark.parametrize("what", ["a step's line", "a checkpoint", "the next generation"])
def test_a_full_disk_ends_the_run_with_words(what: str, run: RunDirectory) -> None:
    recorder, file = RunRecorder(run), run.generation_rollouts(0, 0)
    fill_disk_at(file)
    recorder.generation(0, [record()])
    with pytest.raises(InputError, match=r"can't be written to .*000000-rank0\.parquet: .*No space left") as failed:
        COUNTING[what](recorder)
    assert f"ascent train --resume {run.path}" in failed.value.mend
    assert not run.metrics.exists(), "no line counts them"
    assert list(run.rollouts.iterdir()) == [], "nothing is left in the way"
    recorder.generation(0, [record()])
    recorder.step(STEP)
    assert len(read_rollouts(run.rollouts)) == len(read_json_lines(run.metrics)) == 1
    recorder.close()


def test_an_evaluation_is_told_once_its_completions_are_kept(run: RunDirectory) -> None:
    recorder = RunRecorder(run)
    fill_disk_at(run.evaluation_rollouts(0, 0, 0))
    with pytest.raises(InputError, match="No space left"):
        recorder.evaluation(EVALUATION, [record()])
    assert not run.evaluations.exists()
    recorder.close()


def test_another_error_is_not_taken_for_a_full_disk(run: RunDirectory) -> None:
    recorder = RunRecorder(run)
    recorder.generation(0, [record(reward="not a number")])
    with pytest.raises(Exception, match="not a number") as failed:
        recorder.settle()
    assert not isinstance(failed.value, InputError)


def test_what_was_given_is_written_when_another_error_ends_the_run(
    run: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = RunRecorder(run)
    recorder.generation(0, [record()])
    recorder.close()
    recorder.close()
    assert len(read_rollouts(run.rollouts)) == 1
    recorder = RunRecorder(run)
    fill_disk_at(run.generation_rollouts(1, 0))
    recorder.generation(1, [record()])
    recorder.close()
    assert "No space left" in caplog.text


def test_a_process_that_just_ends_writes_what_it_was_given(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.tracking.test_rollouts import record\n"
        "from ascent.tracking.rollout_writer import RolloutWriter\n"
        "RolloutWriter().write(Path(sys.argv[1]), [record()] * 1000)\n"
        "raise SystemExit(3)"
    )
    file = tmp_path / "000000-rank0.parquet"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", program, file], env=environment, check=False).returncode == 3
    assert len(read_rollouts(file)) == 1000
