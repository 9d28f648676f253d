"""The benchmark of a step: its bound, its intervals, what it keeps, and that it stays away from a busy machine."""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
Module = Callable[[str], ModuleType]
ROUND = {
    "ascent": {
        "step": 3.0,
        "generate": 1.0,
        "sync": 0.1,
        "optimizer": 0.2,
        "reward": 0.0,
        "logps": 0.0,
        "needed_prompt": 300,
        "needed_completion": 700,
        "samples": 8,
        "tokens": 800,
        "peak_mib": 1000.0,
    },
    "dense": {"per_token": 0.001},
}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    """module("figures") is benchmarks/stepping/figures.py."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return lambda name: importlib.import_module(name if name == "step" else f"stepping.{name}")


def test_the_bound_is_what_its_formula_says(module: Module) -> None:
    figures = module("figures")
    assert figures.bound(ROUND) == pytest.approx(1.0 + 0.001 * 1000 + 0.2 + 0.1)
    assert figures.to_bound([ROUND]).mean == pytest.approx(3.0 / 2.3)
    assert figures.to_bound([{"ascent": ROUND["ascent"]}]) is None, "no bound without its measurement"


def test_ratios_are_of_the_same_round(module: Module) -> None:
    figures = module("figures")
    rounds = [{"a": {"step": step * factor}, "b": {"step": step}} for step, factor in ((1, 2), (10, 2.2), (5, 1.8))]
    found = figures.steps_ratio([*rounds, {"a": {"step": 7.0}}], "a", "b")
    assert found.rounds == 3
    assert found.mean == pytest.approx((2 * 2.2 * 1.8) ** (1 / 3))
    logs = [math.log(factor) for factor in (2, 2.2, 1.8)]
    spread = math.sqrt(sum((each - sum(logs) / 3) ** 2 for each in logs) / 2)
    assert math.log(found.high / found.mean) == pytest.approx(4.302653 * spread / math.sqrt(3))
    assert math.log(found.mean / found.low) == pytest.approx(4.302653 * spread / math.sqrt(3))


def test_what_carries_gradient_is_counted_once(module: Module) -> None:
    import torch

    batch = {
        "prompt_ids": torch.tensor([[0, 5, 6], [0, 5, 6], [0, 5, 6], [7, 8, 9]]),
        "prompt_mask": torch.tensor([[0, 1, 1], [0, 1, 1], [0, 1, 1], [1, 1, 1]]),
        "completion_ids": torch.tensor([[3, 4, 0], [3, 4, 0], [3, 4, 4], [5, 0, 0]]),
        "completion_mask": torch.tensor([[1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 0, 0]]),
        "advantages": torch.tensor([1.0, 1.0, -2.0, 0.0]),
    }
    found = module("watching").counted(batch)
    assert (found["needed_prompt"], found["needed_completion"]) == (2, 2 + 3)
    assert (found["samples"], found["tokens"]) == (4, 8)
    assert (found["mean_prompt"], found["mean_completion"]) == (9 / 4, 2)


def test_runs_of_the_same_sources_add_up(module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = module("results")
    monkeypatch.setattr(results, "code", lambda: "one")
    keep = results.keeper(tmp_path, "quick", kept=True)
    keep(ROUND)
    keep(ROUND)
    results.keeper(tmp_path, "quick", kept=True)(ROUND)
    runs = results.read(results.result_file(tmp_path, "quick"))
    assert [len(run["rounds"]) for run in runs] == [2, 1]
    assert len(results.newest_rounds(runs)) == 3
    monkeypatch.setattr(results, "code", lambda: "another")
    results.keeper(tmp_path, "quick", kept=True)(ROUND)
    assert len(results.newest_rounds(results.read(results.result_file(tmp_path, "quick")))) == 1
    assert not list(tmp_path.glob("busy*"))


def test_tables_and_page(module: Module, tmp_path: Path) -> None:
    tables, results = module("tables"), module("results")
    slow = {**ROUND["ascent"], "step": 6.0}
    for _ in range(2):
        results.keeper(tmp_path, "long", kept=True)({"trl-vllm": slow, **ROUND})
    text = tables.tables(tmp_path)
    assert "Ascent is faster than TRL with vLLM: 2.00 (2.00 to 2.00) times" in text
    assert "Ascent takes of the bound: 1.30" in text
    assert "| TRL, vLLM samples | 6.00 | 1.3 | 133 | 1.00 | 0.00 | 0.00 | 4.70 | 0.10 | 0.20 | 1000 |" in text
    assert "quick" not in text
    page = tmp_path / "page.md"
    page.write_text(f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n")
    tables.write_between_marks(page, text)
    assert page.read_text() == f"before\n{tables.BEGIN}\n{text}\n{tables.END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="no <!-- steps"):
        tables.write_between_marks(page, text)


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that keeps a core busy and isn't this one's child; its number."""
    spin = f"{sys.executable} -c 'while True: pass' >/dev/null 2>&1 & echo $!"
    started = subprocess.run(["sh", "-c", spin], stdout=subprocess.PIPE, text=True, check=True, timeout=10)
    pid = int(started.stdout)
    yield pid
    os.kill(pid, signal.SIGKILL)


def test_a_busy_machine_is_seen_and_refused(
    module: Module, stranger: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert f"process {stranger}" in (module("machine").busy(0.5) or "")
    monkeypatch.setattr(sys, "argv", ["step.py", "--workloads", "tiny", "--results", str(tmp_path)])
    assert module("step").main() == 1
    assert f"process {stranger}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_its_own_processes_are_not_others(module: Module) -> None:
    machine = module("machine")
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert f"process {child.pid}" not in (machine.busy(0.5) or "")
    finally:
        child.kill()
        child.wait()


@pytest.mark.slow
@pytest.mark.torch
def test_systems_take_turns(tmp_path: Path) -> None:
    """The whole program, on a policy that is as small as can be."""
    command: list[Any] = [sys.executable, FOLDER / "step.py", "--workloads", "tiny", "--busy-ok", "--results", tmp_path]
    path = os.pathsep.join((str(FOLDER.parent / "src"), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [*command, "--rounds", "2", "--warm", "1", "--systems", "main", "ascent-none"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "not to be kept" in done.stdout
    (run,) = json.loads((tmp_path / "busy-step-tiny.json").read_text())["runs"]
    assert len(run["rounds"]) == 2
    for each in run["rounds"]:
        assert set(each) == {"trl-transformers", "trl-vllm", "ascent", "ascent-none", "dense"}
        for system, figures in each.items():
            if system != "dense":
                assert figures["samples"] == 8
                assert figures["step"] > figures["generate"] > 0
                assert figures["needed_completion"] <= figures["tokens"]
        assert each["trl-vllm"]["logps"] > 0
        assert each["ascent"]["logps"] == 0, "no pass for what the training forward gives"
        assert each["dense"]["per_token"] > 0
