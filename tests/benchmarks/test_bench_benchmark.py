"""benchmarks/bench.py: the workload that is kept, and what it makes of figures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from tests.bench.test_bench_report import FOUND, repeat

from ascent.bench.bound import Bound, occupied, static_steps
from ascent.bench.figures import Bench, Measured, OfTheBound
from ascent.bench.measuring import all_lengths

_BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    import importlib

    monkeypatch.syspath_prepend(str(_BENCHMARKS))
    before = set(sys.modules)
    yield importlib.import_module("bench")
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("bench", "benching", "stepping"):
            del sys.modules[name]


def figures(static: float, dynamic: float, tuned: float, bound: float) -> Bench:
    assert FOUND.of_the_bound is not None
    stages = tuple(
        Measured(name, {}, (repeat(seconds),), 1.0)
        for name, seconds in (("static", static), ("dynamic", dynamic), ("tuned", tuned))
    )
    near = OfTheBound(Bound(bound, bound), FOUND.of_the_bound.cost, 0.0, bound / dynamic)
    return replace(FOUND, stages=stages, of_the_bound=near)


@pytest.mark.torch
def test_what_the_page_says_of_the_kept_lengths(program: ModuleType) -> None:
    workload, rows = program.recorded()
    lengths = all_lengths(workload)
    assert (len(lengths), len(workload.groups), min(lengths), max(lengths), rows) == (218, 32, 8, 256, 8)
    dynamic = sum(steps for _, steps in occupied(lengths, rows))
    assert static_steps(lengths, rows) / dynamic == pytest.approx(2.4, abs=0.05)
    assert dynamic / max(sum(lengths) / rows, max(lengths)) == pytest.approx(1.04, abs=0.005)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("found", "good"),
    [
        (figures(24.0, 10.0, 5.0, 9.5), True),
        (figures(24.0, 10.0, 5.0, 9.0), False),  # 1.11 times the bound
        (figures(24.0, 10.0, 8.0, 9.5), False),  # tuned only 1.25 times as fast
        (replace(figures(24.0, 10.0, 5.0, 9.5), of_the_bound=None), False),
    ],
)
def test_both_aims_are_held(program: ModuleType, found: Bench, good: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert program._tell(found) is good
    assert "dynamic: 2.40 times static here; 2.3 times are told" in capsys.readouterr().out


@pytest.mark.torch
def test_what_is_kept_names_no_folder(program: ModuleType) -> None:
    kept = program._kept(replace(FOUND, model="/tmp/abc/policy"))
    assert kept["found"]["model"] == "a random Llama of 5 million parameters"
    assert kept["ratios"]["dynamic"] == {"times_static": 2.0, "field": 2.3}
