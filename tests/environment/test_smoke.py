"""The smoke test's frame with small programs; its real steps where the training packages are installed."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.waiting import wait_until

from ascent.environment import smoke


def step(program: str, *, seconds: float = 20, processes: int = 1) -> smoke.Step:
    return smoke.Step("a step", program, seconds, processes)


def test_passing_step_reports_what_it_measured(tmp_path: Path) -> None:
    result = smoke.run_step(step("print('result: 42 right'); print('noise at the end')"), tmp_path)
    assert result.outcome == "passed"
    finding = smoke.as_finding(result)
    assert (finding.level, finding.rule) == ("ok", "A801")
    assert finding.what.endswith("42 right")


def test_failure_is_diagnosed(tmp_path: Path) -> None:
    program = "raise ImportError('libatb.so: cannot open shared object file: No such file or directory')"
    finding = smoke.as_finding(smoke.run_step(step(program), tmp_path))
    assert finding.level == "error"
    assert "nnal-not-installed-or-sourced" in finding.what
    assert any("nnal/atb/set_env.sh" in line for line in finding.mend)


def test_failure_that_isnt_known_shows_its_last_lines(tmp_path: Path) -> None:
    finding = smoke.as_finding(smoke.run_step(step("import sys; sys.exit('the flux is out of phase')"), tmp_path))
    assert finding.level == "error"
    assert any("flux" in line for line in finding.evidence)


def test_missing_package_is_skipped(tmp_path: Path) -> None:
    result = smoke.run_step(step("print('result: not installed'); raise SystemExit(3)"), tmp_path)
    assert result.outcome == "skipped"
    assert smoke.as_finding(result).level == "note"


def lives(status: Path) -> bool:
    """Whether the process of a status file in /proc runs; a dead one that nobody waited for doesn't."""
    try:
        return not re.search(r"^State:\s+[ZX]", status.read_text(), re.M)
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_step_that_hangs_is_ended_with_all_its_children(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\ntime.sleep(600)\n"
    )
    result = smoke.run_step(step(program, seconds=2), tmp_path)
    assert result.outcome == "timeout"
    assert result.seconds < 120
    child = result.output.split()[0]
    status = Path(f"/proc/{child}/status")
    wait_until(lambda: not lives(status), "the end of the child's process")  # killed ones take a moment to go


def test_ranks_know_their_place(tmp_path: Path) -> None:
    program = "import os; print('result:', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])"
    result = smoke.run_step(step(program, processes=2), tmp_path)
    assert result.output.splitlines() == ["result: 0 of 2", "result: 1 of 2"]


def test_first_failure_ends_the_test() -> None:
    heard: list[str] = []
    steps = [step("pass"), step("raise SystemExit(1)"), step("pass")]
    results = smoke.run(steps, report=lambda result: heard.append(result.outcome))
    assert [result.outcome for result in results] == ["passed", "failed"] == heard


def test_programs_of_the_steps_are_python() -> None:
    for each in smoke.STEPS:
        compile(each.program, each.name, "exec")


@pytest.mark.torch
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("each", smoke.STEPS[3:4], ids=lambda each: each.name)
def test_real_step_passes_on_this_machine(each: smoke.Step, tmp_path: Path) -> None:
    result = smoke.run_step(replace(each, seconds=10 * each.seconds), tmp_path)
    assert result.outcome == "passed", result.output


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(3600)
def test_whole_smoke_test_passes_on_this_machine() -> None:
    assert [result.outcome for result in smoke.run()] == ["passed"] * len(smoke.STEPS)
