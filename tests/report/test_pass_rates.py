"""pass@k and its intervals: against enumeration, and against what they promise over many draws."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascent.report.pass_rates import pass_at_k, rate, t_quantile, wilson


@pytest.mark.parametrize(("samples", "passed"), [(1, 0), (1, 1), (5, 2), (7, 1), (8, 8), (6, 0)])
def test_pass_at_k_is_the_share_of_draws_with_a_pass(samples: int, passed: int) -> None:
    outcomes = [True] * passed + [False] * (samples - passed)
    for k in range(1, samples + 1):
        draws = list(itertools.combinations(outcomes, k))
        assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_of_many_samples_is_exact() -> None:
    assert pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5)
    assert pass_at_k(200, 199, 2) == 1.0


@pytest.mark.parametrize(("samples", "passed", "k"), [(4, 2, 5), (4, 2, 0), (4, 5, 1), (4, -1, 1)])
def test_what_cant_be_told_is_refused(samples: int, passed: int, k: int) -> None:
    with pytest.raises(ValueError, match="can't be told"):
        pass_at_k(samples, passed, k)


def test_of_single_completions_it_is_wilson_s_interval() -> None:
    """By hand: 7 of 20, z = 1.959964 gives 0.1812 to 0.5671 (Wilson, 1927)."""
    found = rate([1.0] * 7 + [0.0] * 13)
    assert (found.low, found.high) == pytest.approx((0.1812, 0.5671), abs=5e-5)
    assert (found.low, found.high) == pytest.approx(wilson(0.35, 20))


@given(st.lists(st.integers(0, 8).map(lambda passed: passed / 8), min_size=1, max_size=50))
def test_an_interval_holds_its_mean_and_is_never_empty(values: list[float]) -> None:
    found = rate(values, samples=8 * len(values))
    assert 0 <= found.low <= found.mean <= found.high <= 1
    assert found.high - found.low > 1e-3
    assert found.tasks == len(values)


def test_more_samples_of_a_task_make_it_surer_only_as_far_as_tasks_differ() -> None:
    alike, apart = [0.5] * 40, [0.0] * 20 + [1.0] * 20
    known = [rate(values, samples=8 * 40) for values in ([0.25, 0.75] * 20, apart)]
    assert known[0].high - known[0].low < 0.7 * (known[1].high - known[1].low)
    assert rate(alike).high - rate(alike).low == pytest.approx(known[1].high - known[1].low)


@pytest.mark.parametrize(("alpha", "beta"), [(0.4, 0.6), (2.0, 6.0), (0.2, 3.0)])
def test_nineteen_of_twenty_intervals_hold_the_truth(alpha: float, beta: float) -> None:
    """Tasks of different difficulty, 4 samples of each of 30: 2,000 evaluations."""
    draw = random.Random(f"{alpha}")
    truth = alpha / (alpha + beta)
    held = 0
    for _ in range(2_000):
        passed = [sum(draw.random() < p for _ in range(4)) for p in (draw.betavariate(alpha, beta) for _ in range(30))]
        found = rate([each / 4 for each in passed], samples=120)
        held += found.low <= truth <= found.high
    assert 0.93 <= held / 2_000 <= 0.985


@pytest.mark.parametrize(("degrees", "quantile"), [(3, 3.1824), (5, 2.5706), (10, 2.2281), (30, 2.0423), (200, 1.9719)])
def test_t(degrees: int, quantile: float) -> None:
    assert t_quantile(degrees) == pytest.approx(quantile, rel=0.01)
    assert math.isfinite(t_quantile(0))
