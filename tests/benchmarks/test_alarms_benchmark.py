"""The benchmark of alarms: what counts as found, and the settings of its runs."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ascent import config
from ascent.alarms.advice import advice
from ascent.alarms.facts import RunFacts
from ascent.alarms.rules.table import RULES

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    module = importlib.import_module("alarms")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(module, "SERIES", tmp_path / "series.json")
    return module


def keep(benchmark: ModuleType, name: str, seed: int, *alarms: tuple[str, str, int]) -> None:
    found: list[dict[str, Any]] = [{"name": name, "level": level, "step": step} for name, level, step in alarms]
    benchmark.result_file(name, seed).write_text(json.dumps({"steps": 80, "alarms": found}))


def test_found_is_what_names_the_fault_after_it_began(benchmark: ModuleType) -> None:
    keep(benchmark, "sleeps", 11, ("slower", "warn", 48), ("slower", "warn", 70))
    keep(benchmark, "sleeps", 12, ("slower", "warn", 30), ("collapse", "warn", 60))
    keep(benchmark, "sleeps", 13, ("slower", "info", 50))
    keep(benchmark, "healthy-steady-parts", 11, ("room", "info", 30))
    keep(benchmark, "healthy-steady-parts", 12, ("ratio", "warn", 30))
    rows = benchmark.to_table([11, 12, 13]).splitlines()[2:]
    assert rows == [
        "| sleeps | 3 | 1 of 3 | 9, 9 | slower (1) | collapse (1), slower (1) |",
        "| healthy-steady-parts | 2 | 1 alarms |  |  | ratio (1) |",
    ]


def test_cells_are_dealt_out_seed_by_seed(benchmark: ModuleType) -> None:
    names = ["nan", "healthy-steady-parts"]
    found = benchmark.cells(names, [11, 12, 13, 14])
    assert found[:3] == [("nan", 11), ("healthy-steady-parts", 11), ("nan", 12)]
    assert [name for name, seed in found if seed == 14] == ["nan"], "three seeds of healthy runs"


def test_every_planted_run_has_a_configuration_and_known_alarms(benchmark: ModuleType, tmp_path: Path) -> None:
    names = {rule.name for rule in RULES}
    for name, planted in benchmark.RUNS.items():
        settings, _ = config.load(benchmark.CONFIG, [*benchmark._usual(1, planted), *planted.settings])
        assert settings.trainer["max_steps"] == planted.steps
        assert planted.alarms <= names, name
        assert bool(planted.alarms) == (name in benchmark.FAULTS)


def test_every_alarm_has_advice() -> None:
    figures = {"clipped_ratio": 0.3, "longest": 10.0}
    for rule in RULES:
        for facts in (RunFacts(), RunFacts(beta=0.04, learning_rate=1e-6, temperature=0.7, staleness=1)):
            assert all(advice(rule.name, figures, facts)), rule.name
