"""The experiment on GPRO: which runs come next, how a strength is chosen, its intervals. The runs take hours."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from gaming.arms import ARMS, CHOOSING_SEEDS
from gaming.figures import end, interval, paired, peak, truth_at
from gaming.report import report

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpro_benchmark", FOLDER / "gpro.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cell(arm: str, strength: float, seed: int, *truths: float) -> dict[str, Any]:
    curve = [{"step": 10 * n, "truth": truth, "proxy": 0.5 + 0.1 * n, "hacks": {}} for n, truth in enumerate(truths)]
    metrics = {"entropy": [0.1, None], "grad_norm": [0.2]}
    found = {"arm": arm, "strength": strength, "seed": seed, "held_out": curve, "metrics": metrics}
    return {**found, "seconds": 60.0, "divergence": 0.1}


def put(benchmark: ModuleType, folder: Path, made: dict[str, Any]) -> None:
    file = benchmark.file_of(folder, made["arm"], made["strength"], made["seed"])
    file.write_text(json.dumps(made), encoding="utf-8")


def asked(folder: Path, **more: Any) -> argparse.Namespace:
    return argparse.Namespace(
        **{"out": folder, "arms": list(ARMS), "seeds": list(range(10)), "strengths": None, **more}
    )


def test_a_strength_is_chosen_when_all_its_runs_are_there(benchmark: ModuleType, tmp_path: Path) -> None:
    assert benchmark.chosen(tmp_path, "grpo") == 0.0
    for strength in ARMS["kl"].strengths:
        for seed in CHOOSING_SEEDS:
            assert benchmark.chosen(tmp_path, "kl") is None
            put(benchmark, tmp_path, cell("kl", strength, seed, 0.9, 0.6 if strength == 0.1 else 0.4))
    assert benchmark.chosen(tmp_path, "kl") == 0.1


def test_the_turned_sign_has_the_strength_of_the_right_one(benchmark: ModuleType, tmp_path: Path) -> None:
    for strength in ARMS["gpro"].strengths:
        for seed in CHOOSING_SEEDS:
            put(benchmark, tmp_path, cell("gpro", strength, seed, strength))
    assert benchmark.chosen(tmp_path, "turned") == 2.0


def test_choosing_comes_first_then_five_seeds_of_the_first_arms(benchmark: ModuleType, tmp_path: Path) -> None:
    cells = list(benchmark.wanted(asked(tmp_path)))
    choosing = [each for each in cells if each[2] in CHOOSING_SEEDS]
    assert {arm for arm, _, _ in choosing} == {"kl", "gpro", "rate", "published"}
    assert {arm for arm, _, _ in choosing[:24]} == {"kl", "gpro"}
    assert [each for each in cells if each not in choosing][:5] == [("grpo", 0.0, seed) for seed in range(5)]


def test_the_interval_is_students() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.303 / 3**0.5)
    assert interval([1.0]).half is None


def test_differences_are_paired_by_seed() -> None:
    one = {seed: cell("gpro", 1.0, seed, 0.5 + seed / 10) for seed in (0, 1, 3)}
    other = {seed: cell("kl", 0.1, seed, 0.3 + seed / 10) for seed in (0, 1, 2)}
    found = paired(one, other)
    assert found is not None
    assert found.count == 2
    assert found.mean == pytest.approx(0.2)
    assert found.half == pytest.approx(0.0, abs=1e-9)
    assert paired(one, {}) is None


def test_figures_of_a_run() -> None:
    made = cell("grpo", 0.0, 0, 0.2, 0.7, 0.3)
    assert (end(made), peak(made)) == (0.3, 0.7)
    assert (truth_at(made, 0.6), truth_at(made, 0.9)) == (0.7, None)


def test_the_report_says_what_is_there() -> None:
    cells = [cell(arm, 1.0, seed, 0.4 + seed / 10) for arm in ("gpro", "kl") for seed in (0, 1, CHOOSING_SEEDS[0])]
    told = report(cells, dict.fromkeys(ARMS, 1.0))
    assert "| gpro | 1 (taken) | 10.400 | 1 of 3 |" in told
    assert "gpro - kl (primary): truth +0.000 ± 0.000 (n=2)" in told
    assert "gpro - turned: no seed has both" in told
