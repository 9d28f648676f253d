"""Alarms while a run trains: told once, kept with samples, gone on with after a resume, and a reason to stop."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.run_config import write_config

from ascent.cli import main

pytestmark = pytest.mark.torch


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def make(folder: Path, tiny_policy: Callable[..., Path], tasks: Path, **alarms: object) -> Path:
    """A run in which no completion of a random policy passes: nothing to learn from the third generation on."""
    path = write_config(folder / "run.yaml", tiny_policy(), tasks, max_steps=14, save_steps=12)
    config = yaml.safe_load(path.read_text())
    config["reward"] = {"compile_weight": 0.0, "tests_weight": 0.0, "all_tests_weight": 1.0}
    config["tracking"]["evaluate"] = False
    config["alarms"] = alarms
    path.write_text(yaml.safe_dump(config))
    return path


def test_an_alarm_is_told_kept_and_known_after_a_resume(
    tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(make(tmp_path, tiny_policy, task_file))]) == 0
    told = capfd.readouterr().err
    run = tmp_path / "runs" / "run"
    assert told.count("ALARM") == 1, told
    assert "ALARM no-signal (critical) at step 10" in told
    assert told.index("step 10/14") < told.index("ALARM no-signal")
    (alarm,) = lines_of(run / "alarms.jsonl")
    assert (alarm["name"], alarm["since"], len(alarm["evidence"]) > 0) == ("no-signal", 1, True)
    assert main(["train", "--resume", str(run), "trainer.max_steps=16"]) == 0
    assert "ALARM" not in capfd.readouterr().err, "the episode goes on"
    assert len(lines_of(run / "alarms.jsonl")) == 1
    assert main(["alarms", str(run), "--json"]) == 1
    report = json.loads(capfd.readouterr().out)
    assert [(each["name"], each["step"]) for each in report["alarms"]] == [("no-signal", 10)], "the same from its files"


def test_a_critical_alarm_can_end_a_run_with_a_checkpoint(
    tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = make(tmp_path, tiny_policy, task_file, stop_on=["critical"])
    assert main(["train", str(path)]) == 1
    run = tmp_path / "runs" / "run"
    assert "stopped after step 11 (alarm no-signal, for alarms.stop_on); go on with" in capfd.readouterr().err
    assert (run / "checkpoints" / "checkpoint-11" / "ascent_state.json").is_file()
    assert main(["train", "--resume", str(run)]) == 0, "it was told, and whoever goes on knows"
    assert lines_of(run / "metrics.jsonl")[-1]["step"] == 14


def test_a_level_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: {path: x}\nalarms: {stop_on: [fatal]}\n")
    assert main(["train", str(path)]) == 2
    assert "alarms.stop_on" in capsys.readouterr().err


def test_alarms_that_fail_end_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ascent.alarms.facts import RunFacts
    from ascent.alarms.fold import Fold
    from ascent.tracking.run_directory import RunDirectory
    from ascent.training.records.alarms import LiveAlarms
    from ascent.training.records.recorder import StepRecord
    from ascent.types import StepTimes

    told: list[str] = []
    alarms = LiveAlarms(RunDirectory(tmp_path), RunFacts(), told.append)
    record = StepRecord(1, 2, 0.0, 0, {"loss": float("nan")}, StepTimes(1, 1, 0, 0, 0, 0, 0), None, {})
    assert alarms.step(record) == {"alarm/not-finite": 3.0}
    assert [text.partition(":")[0] for text in told] == ["ALARM not-finite (critical) at step 1, since step 1"]
    assert lines_of(tmp_path / "alarms.jsonl")[0]["figures"] == {"loss": 1.0}
    monkeypatch.setattr(Fold, "take", lambda self, values: values["nothing"])
    assert alarms.step(record) == alarms.step(record) == {}
    assert "alarms can't judge step 1 (KeyError: 'nothing'); the run goes on" in told[1]
    assert len(told) == 2, "once"
