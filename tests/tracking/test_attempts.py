"""Only the newest attempt of a run writes into its directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascent.tracking import attempts
from ascent.tracking.rollouts import write_rollouts
from ascent.tracking.run_directory import RunState, append_json_line, write_json, write_text
from ascent.training.checkpoint.saving import saving


class _Args:
    process_index, save_total_limit = 0, 1


class _State:
    best_global_step, best_model_checkpoint = 0, None


@pytest.fixture
def first_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in whose first attempt this process is."""
    number = attempts.begin(tmp_path, ranks=2, nodes=["10.0.0.1"])
    assert number == 1
    for name, value in attempts.variables(tmp_path, number).items():
        monkeypatch.setenv(name, value)
    return tmp_path


def save_checkpoint(run: Path, step: int) -> None:
    folder = run / "checkpoints" / f"checkpoint-{step}"
    with saving(folder, RunState(step, step, step), _Args(), _State(), lambda: None):
        (folder / "weights").write_text(str(step))


def test_the_newest_attempt_writes(first_attempt: Path) -> None:
    append_json_line(first_attempt / "metrics.jsonl", {"step": 1})
    write_json(first_attempt / "a.json", {})
    write_rollouts(first_attempt / "r.parquet", [])
    save_checkpoint(first_attempt, 5)
    assert (first_attempt / "checkpoints/checkpoint-5/ascent_state.json").is_file()


@pytest.mark.torch
def test_an_older_attempt_writes_nothing(first_attempt: Path) -> None:
    append_json_line(first_attempt / "metrics.jsonl", {"step": 1})
    save_checkpoint(first_attempt, 5)
    assert attempts.begin(first_attempt, why="node 10.0.0.1 is lost") == 2
    before = {path: path.stat().st_mtime_ns for path in first_attempt.rglob("*")}
    for write in (
        lambda: append_json_line(first_attempt / "metrics.jsonl", {"step": 2}),
        lambda: write_text(first_attempt / "config.yaml", "x"),
        lambda: write_json(first_attempt / "a.json", {}),
        lambda: write_rollouts(first_attempt / "r.parquet", []),
        lambda: save_checkpoint(first_attempt, 10),
        lambda: save_checkpoint(first_attempt, 5),
    ):
        with pytest.raises(attempts.StaleAttemptError, match=r"attempt 1 of .*attempt 2 has begun"):
            write()
    assert before == {path: path.stat().st_mtime_ns for path in first_attempt.rglob("*")}


def test_an_attempt_that_begins_in_the_middle_of_a_checkpoint_keeps_it_from_counting(first_attempt: Path) -> None:
    save_checkpoint(first_attempt, 5)
    folder = first_attempt / "checkpoints" / "checkpoint-10"
    with (
        pytest.raises(attempts.StaleAttemptError),
        saving(folder, RunState(10, 10, 10), _Args(), _State(), lambda: None),
    ):
        attempts.begin(first_attempt)
    assert not (folder / "ascent_state.json").exists()
    assert (first_attempt / "checkpoints/checkpoint-5/ascent_state.json").is_file(), "the old one isn't rotated away"


def test_a_run_that_was_removed_is_not_written_either(first_attempt: Path) -> None:
    (first_attempt / attempts.FILE).unlink()
    with pytest.raises(attempts.StaleAttemptError):
        append_json_line(first_attempt / "metrics.jsonl", {"step": 1})


def test_a_process_without_an_attempt_is_not_fenced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(attempts.VARIABLE, raising=False)
    attempts.begin(tmp_path)
    append_json_line(tmp_path / "metrics.jsonl", {"step": 1})
