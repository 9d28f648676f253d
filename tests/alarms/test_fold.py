"""The fold: once an episode, the same from anywhere, and nothing claimed that was not looked at."""

from __future__ import annotations

import json
import math

import pytest
from tests.alarms.lines import FACTS, alarms_of, line, run, state_of

from ascent.alarms.fold import CLEAR_STEPS, Fold, fold
from ascent.alarms.rules.table import RULES


def told(alarms: list) -> list[tuple[str, str, int]]:
    return [(alarm.name, alarm.level, alarm.step) for alarm in alarms]


def test_an_episode_is_told_once_and_again_after_twenty_clear_steps() -> None:
    def bad(step: int) -> dict:
        return {"signals/repeated": 60} if 30 <= step < 40 or 45 <= step < 50 or 100 <= step < 110 else {}

    assert told(alarms_of(150, bad)) == [("repetition", "warn", 30), ("repetition", "warn", 100)]
    assert CLEAR_STEPS == 20


def test_what_gets_graver_is_told_again() -> None:
    def worse(step: int) -> dict:
        return {} if step < 50 else {"signals/ess": 0.4 if step < 70 else 0.1}

    assert told(alarms_of(120, worse)) == [("few-effective", "warn", 54), ("few-effective", "critical", 71)]


def test_only_hard_rules_speak_before_step_25() -> None:
    early = {"signals/repeated": 60, "signals/ess": 0.1, "signals/unscored": 60}
    assert told(alarms_of(24, lambda step: early)) == [("few-effective", "critical", 2)]
    assert {name for name, _, _ in told(alarms_of(25, lambda step: early))} == {
        "few-effective", "repetition", "unjudged",
    }  # fmt: skip


def test_a_fold_can_go_on_from_any_line() -> None:
    def faults(step: int) -> dict:
        return {"signals/repeated": 60, "entropy": 0.05, "signals/distinct_share": 0.1} if step > 60 else {}

    lines = run(140, faults)
    whole, _ = fold(lines, FACTS)
    assert len(whole) == 2
    for cut in (1, 61, 70, 100, 139):
        before, state = fold(lines[:cut], FACTS)
        rest = [alarm for values in lines[cut:] for alarm in state.take(values)]
        assert before + rest == whole


def test_lines_read_from_a_file_say_the_same_as_those_of_the_training() -> None:
    lines = run(90, lambda step: {"loss": math.nan} if step == 50 else {"signals/ess": 0.1} if step > 60 else {})
    written = [json.loads(json.dumps(line).replace("NaN", '"nan"')) for line in lines]
    live, read = fold(lines, FACTS)[0], fold(written, FACTS)[0]
    assert told(live) == told(read) == [("not-finite", "critical", 50), ("few-effective", "critical", 62)]


def test_figures_for_trackers() -> None:
    state = state_of(59, lambda step: {"signals/ess": 0.1} if step >= 50 else {})
    assert state.figures() == {"alarm/few-effective": 3.0}
    state.take(line(60))
    assert state.figures() == {"alarm/few-effective": 0.0}
    assert state_of(40).figures() == {}


def test_what_was_not_recorded_is_not_judged() -> None:
    kept = ("step", "loss", "reward", "grad_norm", "completions/mean_length", "completions/clipped_ratio", "times")
    _, state = fold([{name: values[name] for name in kept} for values in run(100)], FACTS)
    reasons = {each.name: each.why for each in state.not_judged()}
    assert "signals/hollow" in reasons["hollow-passes"]
    assert "sampling_logp_difference" in reasons["mismatch"]
    judged = set(state.names()) - set(reasons)
    assert judged == {"not-finite", "reward-falls", "length", "ratio", "slower"}


def test_a_short_run_is_not_judged_by_what_takes_longer() -> None:
    reasons = {each.name: each.why for each in state_of(10).not_judged()}
    assert {"hollow-passes", "collapse", "slower", "reward-without-truth", "ratio"} <= set(reasons)
    assert "and there are 10" in reasons["slower"]
    assert "not-finite" not in reasons
    assert "beta is 0" in {each.name: each.why for each in fold([], FACTS.__class__(beta=0.0))[1].not_judged()}["drift"]
    assert len(Fold(FACTS).not_judged()) == len(RULES), "of a run without a step nothing is known"


def test_a_line_of_no_step_is_refused() -> None:
    with pytest.raises(ValueError, match="without the number of its step"):
        Fold(FACTS).take({"loss": 0.1})


def test_a_generation_that_feeds_several_steps_counts_once() -> None:
    """Steps that sampled nothing neither end an episode nor lengthen it."""

    def every_second(step: int) -> dict:
        if step % 2:
            return {name: None for name in line(1) if name.startswith("signal")}
        return {"signals/ess": 0.4} if step >= 50 else {}

    assert told(alarms_of(100, every_second)) == [("few-effective", "warn", 58)]
