"""The verbs as a user calls them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import npu_tables
import pytest
from known_logs import FAULTY, HEALTHY

from ascent import cli
from ascent.environment import display, faults

ROWS = [(index, "910B3", "OK", 0, None, "0000:C1:00.0", 0, 3400, 65536) for index in range(2)]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def json_of(out: str) -> dict[str, Any]:
    (line,) = out.strip().splitlines()
    content: dict[str, Any] = json.loads(line)
    return content


def test_doctor_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "doctor")
    assert code in (0, 1)
    assert out


def test_report_with_faults_ends_with_one_and_errors_come_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.txt"
    report.write_text(
        npu_tables.hbm_table(ROWS, version="24.1.0")
        + "vllm 0.11.0\nvllm-ascend 0.11.0rc1\ntorch 2.8.0\ntorch_npu 2.8.0\n"
    )
    code, out, _ = call(capsys, "doctor", "--report", str(report))
    assert code == 1
    levels = [
        line.split()[0]
        for line in out.splitlines()
        if line.split() and line.split()[0] in ("error", "warning", "note", "ok")
    ]
    assert levels == sorted(levels, key=["error", "warning", "note", "ok"].index)
    assert max(map(len, out.splitlines())) <= 100
    assert "\x1b[" not in out


def test_report_that_is_right_ends_with_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.txt"
    report.write_text("Python version: 3.11.9\nvllm 0.18.0\nvllm-ascend 0.18.0\ntorch 2.9.0\nCANN 8.5.1\n")
    code, out, _ = call(capsys, "doctor", "--report", str(report))
    assert (code, "nothing to mend" in out) == (0, True)


def test_json_is_one_object_and_text_goes_to_the_other_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.txt"
    report.write_text("vllm 0.18.0\nvllm-ascend 0.18.0\ntorch 2.8.0\n")
    code, out, err = call(capsys, "doctor", "--report", str(report), "--json")
    content = json_of(out)
    assert (code, content["schema"], content["verdict"], content["row"]) == (
        1,
        "ascent.doctor/1",
        "differs",
        "0.18.0",
    )
    assert content["differences"] == [{"component": "torch", "have": "2.8.0", "want": "2.9.0"}]
    assert "A401" in err


def test_report_from_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"dcmi module initialize failed. ret is -8005\n")))
    code, out, _ = call(capsys, "doctor", "--report", "-")
    assert (code, "A202" in out) == (1, True)


@pytest.mark.parametrize(
    ("name", "shown"), [("NPU_ARCH", "SOC_VERSION"), ("A401", "release"), ("vllm_device", "vllm_mode")]
)
def test_explain(name: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "doctor", "--explain", name)
    assert code == 0
    assert shown in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("doctor", "--report", "/no/such/file"), "can't read /no/such/file"),
        (("doctor", "--explain", "max_seq_lenn"), "did you mean max_seq_len?"),
        (("diagnose", "/no/such/file"), "can't read /no/such/file"),
        (("check-model", "nobody/nothing"), "neither a folder nor in the local cache"),
    ],
)
def test_bad_input_ends_with_two_and_a_clear_error(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert said in err
    assert "Traceback" not in err


def test_report_and_run_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", "--report", "x", "--run"])
    assert ended.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


def test_diagnose_names_cause_and_mend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.log"
    log.write_text(FAULTY["free memory at start"][1])
    code, out, _ = call(capsys, "diagnose", str(log))
    assert code == 1
    assert "oom-free-memory-on-startup" in out
    assert "mend" in out
    assert "follows from oom-free-memory-on-startup" in out
    assert max(map(len, out.splitlines())) <= 100


def test_diagnose_of_a_healthy_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "run.log"
    log.write_text(HEALTHY["metrics"])
    code, out, err = call(capsys, "diagnose", str(log), "--json")
    content = json_of(out)
    assert (code, content["verdict"], content["primary"]) == (0, "healthy", None)
    assert "no known fault" in err


def test_diagnose_standard_input_and_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys,
        "stdin",
        io.TextIOWrapper(io.BytesIO(b"Traceback (most recent call last):\nFooError: never seen\n")),
    )
    code, out, _ = call(capsys, "diagnose", "-")
    assert code == 1
    assert "unknown" in out
    assert "never seen" in out


def test_diagnose_a_run_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.log").write_text(FAULTY["fork"][1])
    (tmp_path / "metrics.jsonl").write_text('{"loss": 0.1}\n')
    code, out, _ = call(capsys, "diagnose", str(tmp_path), "--json")
    content = json_of(out)
    assert (code, content["primary"], len(content["logs"])) == (1, "spawn-required", 2)


def test_check_model_reads_files_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 100}')
    code, out, _ = call(capsys, "check-model", str(tmp_path), "--static", "--context", "200", "--json")
    content = json_of(out)
    assert (code, content["schema"], content["architectures"]) == (
        1,
        "ascent.check-model/1",
        ["Qwen3ForCausalLM"],
    )
    assert any(finding["rule"] == "A704" and finding["level"] == "error" for finding in content["findings"])


def test_colours_are_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert display.wants_colour(Terminal())
    assert not display.wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not display.wants_colour(Terminal())
    assert "\x1b[31;1m" in display.reading("x", faults.diagnose_text(FAULTY["fork"][1]), colour=True)
