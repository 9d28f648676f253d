"""`ascent alarms RUN`: text, JSON and exit codes over run directories, whole and broken, of this release and older."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.alarms.lines import run

from ascent.cli import main
from ascent.tracking.rollouts import RolloutRecord, write_rollouts

CONFIG = """
model: {path: builtin:starter}
trainer: {learning_rate: 5.0e-4, max_completion_length: 32}
"""
ESCAPES = "\x1b[2J\x1b]0;owned\x07 \u202e<script>alert(1)</script>"


def directory(folder: Path, lines: Sequence[Mapping[str, Any]], config: str = CONFIG) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(config)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def tampering(step: int) -> dict[str, Any]:
    return {"signals/tampering": 20} if step >= 40 else {}


def record(number: int, **changes: Any) -> RolloutRecord:
    fields = {
        "sample_id": f"run/{number}/0/0", "group_id": f"{number}-0", "task_id": "add/1", "evaluation": None,
        "generation": number, "step": number + 1, "rank": 0, "index": 0, "prompt": "", "completion": "text",
        "program": f"def f():\n    exit({number})", "prompt_ids": (1,), "completion_ids": (1, 2), "logps": (-1.0, -1.0),
        "finish_reason": "stop", "weight_version": number, "reward": 0.5, "rewards": {}, "parts": {}, "advantage": 0.0,
        "compiled": True, "outcomes": ["failed"], "error": None, "sandbox_seconds": 0.1, "sandbox_level": "none",
        "kept": True, "dropped_why": None, "sample_seconds": 0.1, "visible_tests": 1, "markers": ["exit"], **changes,
    }  # fmt: skip
    return RolloutRecord(**fields)


def test_a_healthy_run_is_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alarms", str(directory(tmp_path / "run", run(60)))]) == 0
    said = capsys.readouterr().out
    assert "60 steps, no alarms" in said
    assert "no alarm: not-finite, mismatch" in said
    assert "held-out-falls: it takes two held-out evaluations" in said


def test_an_alarm_is_told_with_samples_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = directory(tmp_path / "run", run(60, tampering))
    (folder / "rollouts").mkdir()
    for number in (10, 38, 39, 40):
        rows = [record(number), record(number, program=f"x = {ESCAPES!r}" + ESCAPES, index=1)]
        write_rollouts(folder / "rollouts" / f"{number:06d}-rank0.parquet", rows)
    assert main(["alarms", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "ALARM tampering (warn) at step 40" in said
    assert "sample run/39/0/0, task add/1, step 40: reward 0.5, 0 of 1 tests passed, exit" in said
    assert "exit(38)" in said
    assert "exit(40)" not in said, "it is of a later step"
    assert "exit(10)" not in said, "it is of an earlier one"
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert main(["alarms", str(folder), "--json"]) == 1
    told = capsys.readouterr()
    report = json.loads(told.out)
    assert (report["schema"], report["good"], report["steps"]) == ("ascent.alarms/1", False, 60)
    (alarm,) = report["alarms"]
    assert (alarm["name"], alarm["level"], alarm["step"]) == ("tampering", "warn", 40)
    assert ESCAPES in alarm["evidence"][1]["program"], "programs read it as it is"
    assert "ALARM tampering" in told.err


def test_info_is_no_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(60, lambda step: {"completions/clipped_ratio": 0.0})
    config = CONFIG.replace("max_completion_length: 32", "max_completion_length: 2048")
    assert main(["alarms", str(directory(tmp_path / "run", lines, config))]) == 0
    assert "ALARM room (info)" in capsys.readouterr().out


def test_an_old_run_is_not_judged_by_what_it_did_not_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{name: value for name, value in line.items() if not name.startswith("signal")} for line in run(60)]
    assert main(["alarms", str(directory(tmp_path / "run", lines)), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "signals/hollow" in report["not_judged"]["hollow-passes"]
    assert not {"hollow-passes", "tampering", "unjudged", "few-effective"} & set(report["clear"])
    assert {"not-finite", "mismatch", "no-signal"} <= set(report["clear"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no metrics.jsonl in it"),
        ("{]\n", "metrics.jsonl is not what a run writes: line 1 is not JSON"),
        ('{"loss": 1}\n', "a line without the number of its step"),
        ("[1, 2]\n", "is not what a run writes"),
        ('{"step": true}\n', "is not what a run writes"),
        ('{"step": 1}\n{"step": 2,\n{"step": 3}\n', "line 2 is not JSON"),
    ],
)
def test_a_broken_directory_is_said_to_be_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    assert main(["alarms", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_said_to_be_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alarms", str(tmp_path / "runs" / "a")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_a_folder_that_may_not_be_entered_is_an_error_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_file", refused)  # tests may run as root, who enters every folder
    assert main(["alarms", str(tmp_path)]) == 2
    assert f"error: {tmp_path}/metrics.jsonl: Permission denied" in capsys.readouterr().err


def test_what_is_cut_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = directory(tmp_path / "run", run(60, tampering), config="model: {pth: x}")
    (folder / "metrics.jsonl").open("a").write('{"step": 61, "los')
    (folder / "rollouts").mkdir()
    (folder / "rollouts" / "000039-rank0.parquet").write_bytes(b"PAR1 cut")
    assert main(["alarms", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "60 steps, 1 alarm" in said
    assert "note: the run's settings are not known" in said
    assert "note: the last line of metrics.jsonl is not whole" in said
    assert "note: no samples for tampering: ArrowInvalid" in said


def test_a_run_without_a_step_is_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alarms", str(directory(tmp_path / "run", []))]) == 0
    said = capsys.readouterr().out
    assert "0 steps, no alarms" in said
    assert "no alarm:" not in said
