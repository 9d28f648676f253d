"""The self-test passes on a machine that works, says what is wrong on one that doesn't, and can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascent.host.children import run_child
from ascent.selftest.packing_check import packing
from ascent.selftest.report import CheckResult, SelftestReport
from ascent.selftest.training_checks import compare_engine, compare_steps

Ascent = Callable[..., subprocess.CompletedProcess[str]]


def lines(rewards: list[float], difference: float = 0.0) -> list[dict[str, Any]]:
    return [
        {
            "step": number,
            "loss": 0.1,
            "grad_norm": 1.0,
            "reward": reward,
            "sampling/sampling_logp_difference/mean": difference,
            "sampling/sampling_logp_difference/max": 10 * difference,
        }
        for number, reward in enumerate(rewards, start=1)
    ]


def test_a_resumed_run_must_make_the_same_steps() -> None:
    whole = lines([0.1, 0.2, 0.3])
    assert compare_steps("resume", whole, lines([0.1, 0.2, 0.3]), 1, 3, 1.0).outcome == "passed"
    assert compare_steps("resume", whole, lines([0.9, 0.2, 0.3]), 1, 3, 1.0).outcome == "passed", "before the kill"
    assert compare_steps("resume", whole, lines([0.1, 0.2, 0.31]), 1, 3, 1.0).outcome == "failed"
    short = compare_steps("resume", whole, lines([0.1, 0.2]), 1, 3, 1.0)
    assert short.outcome == "failed"
    assert "steps [1, 2], expected 1 to 3" in short.what


def test_an_engine_with_stale_weights_is_told() -> None:
    assert compare_engine(lines([0.1], 1e-5), "float32").outcome == "passed"
    stale = compare_engine(lines([0.1, 0.2], 0.05), "bfloat16")
    assert stale.outcome == "failed"
    assert "drifted apart" in stale.what


def test_report_shows_every_check_and_its_verdict() -> None:
    results = (
        CheckResult("device", "passed", 1.0, "1 x CPU", {"GiB in all": 24.0}),
        CheckResult("smoke test", "failed", 2.0, "import torch failed", detail="ImportError: libx.so\nmore"),
        CheckResult("sleep and wake", "skipped", 0.0, "no sleep mode on cpu"),
    )
    report = SelftestReport("0.1.0", "cpu", "CPU", "nothing to mend", results)
    text = report.to_text()
    assert "failed   smoke test (2.0 s): import torch failed\n         | ImportError: libx.so\n" in text
    assert text.endswith("NOT GOOD: 1 passed, 1 failed, 1 skipped")
    assert not report.good
    assert json.loads(json.dumps(report.to_json()))["schema"] == "ascent.selftest/1"
    assert SelftestReport("0.1.0", "cpu", "", "", results[::2]).good


def test_a_child_that_hangs_is_ended(tmp_path: Path) -> None:
    ended = run_child(
        ["timeit", "-n", "1", "-r", "1", "import time; time.sleep(60)"], tmp_path / "log", 0.3, on_cpu=True
    )
    assert ended.code is None
    assert ended.seconds < 50


@pytest.mark.torch
@pytest.mark.timeout(1800)
def test_another_device_than_asked_for_is_told(ascent: Ascent, tmp_path: Path) -> None:
    done = ascent("selftest", "--device", "cuda", cwd=tmp_path)
    assert done.returncode == 2
    assert "--device cuda, but torch trains on" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("device", ["cpu", "npu"])
def test_passes_here(device: str, softnpu: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    """On a machine with two software NPUs, which `--device cpu` leaves alone."""
    environment = softnpu(devices=2)
    environment.pop("ACCELERATE_USE_CPU", None)
    command = [sys.executable, "-m", "ascent", "selftest", "--device", device, "--steps", "4", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=7000, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    outcomes = {result["name"]: result["outcome"] for result in report["results"]}
    assert outcomes.pop("sleep and wake") == "skipped"
    assert outcomes.pop("rows without padding") == ("skipped" if device == "cpu" else "passed")
    assert set(outcomes.values()) == {"passed"}
    assert len(outcomes) >= 9
    assert ("(software)" in next(each for each in report["results"] if each["name"] == "device")["what"]) == (
        device == "npu"
    )
    said = (tmp_path / f"ascent-selftest-{device}.txt").read_text().strip()
    passed = len(outcomes) + (device != "cpu")
    assert said.endswith(f"good: {passed} passed, {len(report['results']) - passed} skipped")


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(600)
def test_rows_without_padding_are_checked_where_there_is_flash_attention(
    softnpu: Callable[..., dict[str, str]],
    tiny_policy: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "policy").symlink_to(tiny_policy())
    assert packing(tmp_path, on_cpu=True).outcome == "skipped"
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    for name, value in softnpu().items():
        monkeypatch.setenv(name, value)
    result = packing(tmp_path, on_cpu=False)
    assert result.outcome == "passed", result.to_text()
    assert result.figures["logps"] < 1e-2
