"""What sampling can't take less than."""

from __future__ import annotations

import random

import pytest
from tests.bench.counting_engine import CountingChild, ragged

from ascent.bench.bound import StepCost, bound, occupied, static_steps
from ascent.rollout.engine import EngineSettings

SETTINGS = EngineSettings("model", "float32", 512, max_num_seqs=8)


def walked(lengths: list[int], rows: int, cost: StepCost) -> float:
    """Seconds of all steps, one by one."""
    child = CountingChild()
    child.opened.append(EngineSettings("model", "float32", 512, max_num_seqs=rows))
    running = [round((seconds - child.step) / child.row) for seconds in child.steps(lengths)]
    return sum(cost.of(each) for each in running)


@pytest.mark.parametrize("rows", [1, 3, 8, 64])
def test_no_order_is_faster_than_the_bound(rows: int) -> None:
    draw = random.Random(rows)
    for _ in range(50):
        lengths = [draw.randint(1, 40) for _ in range(draw.randint(1, 60))]
        steps: dict[int, float] = {}
        for measured in (1, 2, 4, 8, 16, 32, 64):  # a step of more completions never takes less
            steps[measured] = draw.uniform(0.001, 0.01) + (max(steps.values()) if steps else 0.0)
        cost = StepCost(steps, 0.0)
        least = bound(lengths, 0, cost, rows)
        assert walked(lengths, rows, cost) == pytest.approx(least.in_order)
        for order in (sorted(lengths), sorted(lengths, reverse=True), draw.sample(lengths, len(lengths))):
            assert walked(order, rows, cost) >= least.seconds - 1e-9


def test_the_bound_can_be_reached() -> None:
    """Equal completions that fill all places."""
    cost = StepCost({1: 0.01, 8: 0.02}, 0.001)
    least = bound([50] * 24, 100, cost, 8)
    assert least.seconds == pytest.approx(3 * 50 * 0.02 + 0.1)
    assert least.in_order == pytest.approx(least.seconds)


def test_one_long_completion_bounds_all() -> None:
    cost = StepCost({1: 0.01, 8: 0.02}, 0.0)
    assert bound([400, *[1] * 7], 0, cost, 8).seconds == pytest.approx(4.0)


def test_places_are_taken_in_order() -> None:
    def steps(lengths: list[int]) -> dict[int, int]:
        """How many steps have how many completions."""
        found: dict[int, int] = {}
        for running, for_steps in occupied(lengths, 2):
            found[running] = found.get(running, 0) + for_steps
        return found

    assert steps([3, 1, 2]) == {2: 3}
    assert steps([1, 3, 2]) == {2: 3}
    assert steps([2, 2, 5]) == {2: 2, 1: 5}
    lengths = ragged(200, 100)
    assert sum(running * for_steps for running, for_steps in occupied(lengths, 8)) == sum(lengths)


def test_steps_of_batches_that_wait() -> None:
    assert static_steps([5, 1, 7, 2, 3], 2) == 5 + 7 + 3


def test_a_step_between_measured_ones_costs_in_between() -> None:
    cost = StepCost({1: 0.01, 4: 0.04, 8: 0.05}, 0.0)
    assert [cost.of(rows) for rows in (1, 2, 4, 6, 8)] == pytest.approx([0.01, 0.02, 0.04, 0.045, 0.05])
