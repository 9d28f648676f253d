"""Paired comparison: against enumeration, against textbook tests, and against what it promises over many draws."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascent.report.paired import difference, sign_flip_p

shares = st.integers(0, 5).map(lambda passed: passed / 5)


@given(st.lists(st.tuples(shares, shares), min_size=1, max_size=9))
def test_p_is_that_of_all_signs(pairs: list[tuple[float, float]]) -> None:
    values = [a - b for a, b in pairs]
    seen = abs(sum(values))
    flips = [
        sum(s * v for s, v in zip(signs, values, strict=True))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    assert sign_flip_p(values) == pytest.approx(sum(abs(each) >= seen - 1e-9 for each in flips) / len(flips))


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (1, 0), (6, 0), (14, 3), (3, 14), (8, 8)])
def test_of_single_completions_it_is_mcnemar_s_exact_test(better: int, worse: int) -> None:
    """Two-sided: twice the binomial tail of the discordant tasks, at most 1."""
    n = better + worse
    tail = sum(math.comb(n, i) for i in range(max(better, worse), n + 1)) / 2**n
    values = [1.0] * better + [-1.0] * worse + [0.0] * 20
    assert sign_flip_p(values) == pytest.approx(min(1.0, 2 * tail))


def test_many_tasks_are_quick_and_shares_of_different_counts_are_whole_steps() -> None:
    draw = random.Random(0)
    values = [draw.randint(-10, 10) / 10 for _ in range(2_000)]
    assert 0 < sign_flip_p(values) <= 1
    assert sign_flip_p([1 / 3, 1 / 4, 1 / 6]) == 0.25
    assert sign_flip_p([0.1 * math.pi, 0.2 * math.e, -0.01]) == pytest.approx(0.5)


@given(st.lists(st.tuples(shares, shares), min_size=1, max_size=40))
def test_the_other_way_round_it_is_the_same(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = zip(*pairs, strict=True)
    one, other = difference(ours, theirs), difference(theirs, ours)
    assert one.mean == pytest.approx(-other.mean)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
    assert one.p == other.p
    assert (one.better, one.worse) == (other.worse, other.better)
    assert one.low < one.high or abs(one.mean) == 1


def test_equal_policies_are_not_called_surely_equal() -> None:
    found = difference([1.0, 0.0] * 10, [1.0, 0.0] * 10)
    assert found.mean == 0
    assert found.low < -0.05
    assert found.high > 0.05
    assert found.p == 1.0


def test_sequences_that_dont_pair_are_refused() -> None:
    with pytest.raises(ValueError):
        difference([1.0], [1.0, 0.0])
    with pytest.raises(ValueError, match="no task"):
        difference([], [])


@pytest.mark.parametrize("samples", [1, 5])
def test_nineteen_of_twenty_intervals_hold_the_truth_and_one_in_twenty_tests_is_wrong(samples: int) -> None:
    draw = random.Random(samples)

    def passed(p: float) -> float:
        return sum(draw.random() < p for _ in range(samples)) / samples

    held = wrong = 0
    for _ in range(1_000):
        tasks = [draw.betavariate(0.5, 0.8) for _ in range(40)]
        found = difference([passed(min(1.0, p + 0.1 * (1 - p))) for p in tasks], [passed(p) for p in tasks])
        truth = 0.1 * (1 - 0.5 / 1.3)
        held += found.low <= truth <= found.high
        wrong += difference([passed(p) for p in tasks], [passed(p) for p in tasks]).p <= 0.05
    assert 0.93 <= held / 1_000 <= 0.99
    assert wrong / 1_000 <= 0.065
