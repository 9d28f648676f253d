"""The quickstart's benchmark: its control, its intervals, its table. The runs themselves take an hour."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ascent.rewards.code import CodeReward
from ascent.sandbox import Sandbox
from ascent.sandbox.types import FunctionTest
from ascent.types import Task


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "quickstart_benchmark", Path(__file__).resolve().parents[2] / "benchmarks" / "quickstart.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_shuffled_rewards_are_the_same_rewards_for_other_completions(benchmark: ModuleType) -> None:
    task = Task("inc", "", (FunctionTest("f", (0,), 1),), entry_point="f")
    programs = ["def f(x): return 1", "def f(x): return 2"] * 16
    with Sandbox(slots=1, nice=0) as sandbox:
        true = CodeReward([task], sandbox=sandbox)(programs, ["inc"] * 32)
        shuffled: Any = benchmark.ShuffledReward([task], sandbox=sandbox)
        given = shuffled(programs, ["inc"] * 32)
    assert given != true
    assert sorted(given) == sorted(value for value in true if value is not None)
    assert [score.total for score in shuffled.scores] == true, "pass rates stay true"


def test_mean_and_interval(benchmark: ModuleType) -> None:
    # standard deviation 0.1, so 4.303 * 0.1 / sqrt(3) = 0.248
    assert benchmark.interval([0.5, 0.6, 0.7]) == "60.0% ± 24.8%"
    assert benchmark.interval([0.5, 0.6]) == "55.0%"


def test_table_and_page(benchmark: ModuleType, tmp_path: Path) -> None:
    cells = [("rewards", 0), ("rewards", 1), ("shuffled", 0)]
    for variant, seed in cells[:2]:
        result = {
            "before": {"greedy": 0.25, "sampled": 0.3},
            "after": {"greedy": 0.9, "sampled": 0.8 + seed / 100},
            "steps": 150,
            "training_seconds": 200.4,
        }
        benchmark.result_file(tmp_path, variant, seed).write_text(json.dumps(result))
    table = benchmark.to_table(tmp_path, cells)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert lines[0] == ["starter policy", "0", "", "", "25.0%", "30.0%"]
    assert ["GRPO", "1", "150", "200 s", "90.0%", "81.0%"] in lines
    assert any(line[0] == "**GRPO**" and line[5] == "**80.5%**" for line in lines)
    assert not any("shuffled" in line[0] for line in lines), "what has not been run is not in the table"
    page = tmp_path / "page.md"
    page.write_text(f"before\n{benchmark.BEGIN}\nold\n{benchmark.END}\nafter\n")
    benchmark.write_between_marks(page, "new")
    assert page.read_text() == f"before\n{benchmark.BEGIN}\nnew\n{benchmark.END}\nafter\n"
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="no <!-- benchmark"):
        benchmark.write_between_marks(page, "new")
