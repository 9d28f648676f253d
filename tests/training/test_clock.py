"""Phases nest, and every second is counted once."""

from __future__ import annotations

import contextlib
from unittest import mock

from ascent.training.step.clock import StepClock


def test_nested_phases_add_up_to_the_step() -> None:
    now = 100.0

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    with mock.patch("time.perf_counter", side_effect=lambda: now):
        clock = StepClock()
        advance(1)  # other
        clock.base("update")
        advance(2)  # update
        with clock.phase("generate"):
            advance(3)
            with clock.phase("sync"):
                advance(4)
            advance(5)
        with contextlib.suppress(RuntimeError), clock.phase("reward_exposed"):
            advance(6)
            raise RuntimeError
        advance(7)  # update
        clock.base("other")
        advance(8)
        times = clock.finish_step(reward_total=9)
        advance(10)
        following = clock.finish_step()
    assert (times.generate, times.sync, times.update, times.reward_exposed, times.other) == (8, 4, 9, 6, 9)
    assert times.logps == 0
    assert times.step == 36
    assert times.reward_total == 9
    assert (following.step, following.other, following.update) == (10, 10, 0)


def test_tells_in_which_phase_an_exception_was_raised() -> None:
    clock = StepClock()
    clock.base("update")
    seen: list[str] = [clock.current]
    with contextlib.suppress(RuntimeError), clock.phase("generate"), clock.phase("sync"):
        raise RuntimeError
    seen.append(clock.current)
    with clock.phase("logps"):
        seen.append(clock.current)
    assert [*seen, clock.current] == ["update", "sync", "logps", "update"]


def test_waits_for_the_device_at_every_change() -> None:
    waited = mock.Mock()
    clock = StepClock(waited)
    with clock.phase("generate"):
        assert waited.call_count == 1
    assert waited.call_count == 2
