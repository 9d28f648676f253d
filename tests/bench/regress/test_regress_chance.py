"""Rates of false alarms, and what is found."""

from __future__ import annotations

import math
import random

import pytest

from ascent.bench.regress.chance import FALSE_ALARM, over_prompts, over_runs, student_p


@pytest.mark.parametrize(
    ("t", "degrees", "p"),  # of tables
    [
        (12.7062, 1, 0.05),
        (4.30265, 2, 0.05),
        (3.18245, 3, 0.05),
        (2.77645, 4, 0.05),
        (2.22814, 10, 0.05),
        (636.619, 1, 0.001),
        (31.5991, 2, 0.001),
        (8.61030, 4, 0.001),
        (4.58689, 10, 0.001),
    ],
)
def test_student_s_distribution(t: float, degrees: int, p: float) -> None:
    assert student_p(t, degrees) == pytest.approx(p, rel=1e-3)


@pytest.mark.parametrize("degrees", range(1, 12))
def test_student_s_distribution_by_its_density(degrees: int) -> None:
    """Against the density, summed finely."""
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)
    step, inside = 1e-3, 0.0
    for number in range(2000):
        x = (number + 0.5) * step
        inside += scale * (1 + x * x / degrees) ** (-(degrees + 1) / 2) * step
    assert student_p(2.0, degrees) == pytest.approx(1 - 2 * inside, abs=1e-7)
    assert student_p(0.0, degrees) == 1.0


def test_a_shift_of_every_prompt_is_found_and_chance_is_not() -> None:
    draw = random.Random(1)
    least = 1.0
    for _ in range(100):
        was, now = ([draw.expovariate(1.0) for _ in range(33)] for _ in range(2))
        least = min(least, over_prompts(was, now, 0.1).p or 0.0)
    assert least > FALSE_ALARM
    assert least < 0.05, "the test can see differences at all"
    was = [draw.expovariate(1.0) for _ in range(33)]
    assert over_prompts(was, [each + 0.3 for each in was], 0.1).differs
    assert not over_prompts(was, was, 0.1).differs


def test_the_power_that_is_told_is_there() -> None:
    """Found in about nine of ten, where the difference is what is told to be found."""
    draw, spread, count = random.Random(2), 0.2, 33
    told = over_prompts([0.0] * count, [1.0] * count, spread / math.sqrt(count)).detectable
    assert told is not None
    found = 0
    for _ in range(100):
        was = [draw.gauss(0.0, 1.0) for _ in range(count)]
        now = [each + told + draw.gauss(0.0, spread) for each in was]
        found += over_prompts(was, now, 1.0).differs
    assert 80 <= found <= 98


def test_few_prompts_can_t_show_a_change_of_sampling() -> None:
    assert over_prompts([0.0] * 20, [1.0] * 20, 0.1).p is None
    assert over_prompts([0.0] * 21, [1.0] * 21, 0.1).differs


def test_runs() -> None:
    steady = [100.0, 101.0, 99.0, 100.5, 99.5]
    assert over_runs(steady, [each * 0.8 for each in steady]).differs
    assert not over_runs(steady, [each * 1.03 for each in steady]).differs
    assert over_runs(steady[:1], steady[:1]).p is None, "single runs say nothing"
    same = over_runs([5.0, 5.0], [6.0, 6.0])
    assert same.differs
    assert same.detectable == 0.0


def test_runs_without_a_change_are_quiet() -> None:
    draw = random.Random(3)
    found = [
        over_runs(*([math.exp(draw.gauss(0, 0.05)) for _ in range(5)] for _ in range(2))).p or 0.0 for _ in range(2000)
    ]
    assert min(found) > FALSE_ALARM
    assert 0.03 < sum(p < 0.05 for p in found) / len(found) < 0.07, "p is the chance that it says"
