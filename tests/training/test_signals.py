"""Signals: what a generation's completions show, by hand-made records; the same however they are spread over ranks."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from tests.tracking.test_rollouts import record

from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.tracking.rollouts import RolloutRecord
from ascent.training.records.evidence import choose
from ascent.training.records.signals.merged import Signals, merged
from ascent.training.records.signals.sums import sums_of

pytestmark = pytest.mark.torch
PASSED, FAILED = "passed", "failed"


def completion(group: int = 0, **changes: Any) -> RolloutRecord:
    """Judged by one visible and two hidden tests, all passed."""
    usual = {
        "group_id": f"0-{group}",
        "task_id": f"task-{group}",
        "visible_tests": 1,
        "outcomes": [PASSED] * 3,
        "reward": 1.0,
        "signal": True,
    }
    return record(**{**usual, **changes})


def figures(*records: RolloutRecord) -> dict[str, Any]:
    found = merged([sums_of(records)])
    assert found is not None
    return {name.removeprefix("signals/"): value for name, value in found.figures.items()}


def test_hollow_programs_pass_what_is_seen_and_not_what_is_hidden() -> None:
    found = figures(
        completion(),
        completion(outcomes=[PASSED, FAILED, FAILED]),
        completion(outcomes=[PASSED, PASSED, FAILED]),  # half of the hidden ones
        completion(outcomes=[FAILED, FAILED, FAILED], reward=0.1),
    )
    assert (found["passed_visible"], found["passers_known"], found["hollow"], found["solved"]) == (3, 3, 1, 1)
    assert found["visible_fraction"] == 0.75
    assert found["hidden_fraction"] == pytest.approx((1 + 0 + 0.5 + 0) / 4)
    assert found["groups_passed_visible"] == 1


def test_with_visible_tests_alone_the_audit_tells() -> None:
    audited = completion(outcomes=[PASSED], audit_outcomes=[FAILED, "timeout"])
    fails = completion(outcomes=[FAILED], reward=0.0)
    found = figures(audited, completion(outcomes=[PASSED], audit_outcomes=[PASSED] * 2), fails)
    assert (found["audits"], found["passers_known"], found["hollow"], found["solved"]) == (2, 2, 1, 1)
    assert (found["hidden_known"], found["hidden_fraction"], found["timeouts"]) == (2, 0.5, 1)


def test_what_nobody_looked_at_is_absent_and_not_none() -> None:
    """Without an audit, with a failed one, without hidden tests, without a code reward."""
    unaudited = figures(completion(outcomes=[PASSED]), completion(outcomes=[FAILED]))
    assert unaudited["passed_visible"] == 1
    assert not {"hollow", "passers_known", "solved", "marked", "ess", "hidden_fraction"} & set(unaudited)
    failed = completion(outcomes=[PASSED], audit_outcomes=None)
    one_failed = figures(failed, completion(outcomes=[PASSED], audit_outcomes=[PASSED] * 2))
    assert (one_failed["passed_visible"], one_failed["passers_known"], one_failed["solved"]) == (2, 1, 1)
    none_passes = figures(completion(outcomes=[FAILED]), completion(outcomes=[FAILED]))
    assert (none_passes["hollow"], none_passes["solved"]) == (0, 0)
    nothing_hidden = figures(completion(outcomes=[PASSED], audit_outcomes=[]))
    assert nothing_hidden["solved"] == 1
    assert "hollow" not in nothing_hidden
    plain = figures(record(group_id="0-0", signal=True), record(group_id="0-0", signal=True))
    assert not {"passed_visible", "solved", "unjudged", "tampered", "groups_all_pass"} & set(plain)
    assert plain["groups_without_signal"] == 0
    hidden_only = figures(completion(visible_tests=0), completion(visible_tests=0, outcomes=[PASSED, FAILED, PASSED]))
    assert hidden_only["solved"] == 1
    assert "passed_visible" not in hidden_only


def test_groups_without_signal_pass_or_fail() -> None:
    found = figures(
        *[completion(0, signal=False)] * 2,
        *[completion(1, signal=False, outcomes=[PASSED, PASSED, FAILED], reward=0.7)] * 2,
        *[completion(2, signal=False, outcomes=["error"] * 3, reward=0.0)] * 2,
        *[completion(3), completion(3, outcomes=[FAILED] * 3, reward=0.0)],
    )
    assert (found["groups"], found["groups_without_signal"]) == (4, 3)
    assert (found["groups_all_pass"], found["groups_all_fail"]) == (1, 2)
    assert (found["reward_min"], found["reward_max"]) == (0.0, 1.0)


def test_unscored_and_unjudged_are_counted_apart() -> None:
    found = figures(
        completion(),
        completion(reward=None, outcomes=["not_run"] * 3),
        completion(outcomes=["timeout", "not_run", "not_run"], reward=0.1),
        completion(outcomes=["tampered", PASSED, "forbidden"], reward=0.1, finish_reason="length"),
    )
    assert (found["unscored"], found["unjudged"], found["clipped"]) == (1, 1, 1)
    assert (found["tampered"], found["forbidden"], found["timeouts"]) == (1, 1, 1)
    assert found["solved"] == 1


def test_markers_are_counted_by_name() -> None:
    found = figures(
        completion(markers=["exit", "reads"]), completion(markers=[]), completion(markers=["exit"]), completion()
    )
    assert found["marked"] == 2
    assert {name: value for name, value in found.items() if name.startswith("marker/")} == {
        "marker/exit": 2,
        "marker/reads": 1,
    }


def test_distinct_programs_are_counted_within_groups() -> None:
    found = figures(*[completion(0)] * 4, *[completion(1, program=f"x = {n}") for n in range(4)])
    assert found["distinct_share"] == pytest.approx((1 / 4 + 4 / 4) / 2)
    texts = figures(*[record(group_id="0-0", completion="a", program=str(n)) for n in range(2)])
    assert texts["distinct_share"] == 0.5, "without a code reward, of completions"


def test_length_and_reward_go_together_within_groups_only() -> None:
    def sized(group: int, length: int, reward: float) -> RolloutRecord:
        ids = as_token_ids(range(length))
        return completion(group, completion_ids=ids, logps=as_logps([0.0] * length), reward=reward)

    # long groups earn more, within each the short ones do
    found = figures(sized(0, 10, 0.3), sized(0, 20, 0.2), sized(1, 110, 0.9), sized(1, 120, 0.8))
    assert found["length_reward_correlation"] == pytest.approx(-1.0)
    assert (found["mean_length"], found["max_length"]) == (65, 120)
    equal = figures(sized(0, 10, 0.3), sized(0, 20, 0.3))
    assert equal["length_reward_correlation"] is None


def test_effective_sequences_come_from_both_log_probabilities() -> None:
    def known(shift: float, **changes: Any) -> RolloutRecord:
        sampler = as_logps([-1.0, -2.0])
        trainer = as_logps([-1.0 + shift, -2.0])
        return completion(completion_ids=as_token_ids([1, 2]), logps=sampler, trainer_logps=trainer, **changes)

    assert figures(known(0.0), known(0.0))["ess"] == pytest.approx(1.0)
    weights = [math.exp(0.5), math.exp(-1.0)]
    wanted = sum(weights) ** 2 / (2 * sum(weight**2 for weight in weights))
    found = figures(known(0.5), known(-1.0), completion())
    assert found["ess"] == pytest.approx(wanted, rel=1e-6)
    assert (found["ess_completions"], found["logps_not_finite"]) == (2, 0)
    assert figures(known(math.nan), known(5000.0))["logps_not_finite"] == 1
    assert math.isfinite(figures(known(5000.0), known(0.0))["ess"])


def test_columns_have_an_entry_for_each_group_in_order() -> None:
    groups = [completion(number, outcomes=[PASSED] * 3 if number % 2 else [FAILED] * 3) for number in (10, 2, 1)]
    found = merged([sums_of(groups)])
    assert found is not None
    assert found.groups["task"] == ["task-1", "task-2", "task-10"]
    assert found.groups["passed_visible"] == [1, 0, 0]
    assert found.groups["hollow"] == [0, 0, 0]
    assert found.groups["solved"] == [1, 0, 0]
    assert {len(column) for column in found.groups.values()} == {3}
    assert merged([[], []]) is None


def drawn(draw: random.Random, group: int) -> RolloutRecord:
    length = draw.randint(0, 9)
    logps = as_logps([-draw.random() for _ in range(length)])
    judged = draw.random() < 0.9
    outcomes = draw.choices([PASSED, FAILED, "tampered", "timeout"], [6, 2, 1, 1], k=3) if judged else ["not_run"] * 3
    return completion(
        group,
        completion_ids=as_token_ids(range(length)),
        logps=logps,
        trainer_logps=draw.choice([None, as_logps([value + draw.gauss(0, 0.1) for value in logps])]),
        outcomes=outcomes,
        reward=draw.choice([None, 0.1, 0.5, 1.0]),
        program=draw.choice("abc"),
        markers=draw.choice([[], ["exit"], ["exit", "reads"]]),
        finish_reason=draw.choice(["stop", "length"]),
        signal=group % 3 > 0,
    )


@pytest.mark.parametrize("seed", range(8))
def test_it_is_the_same_however_groups_are_spread_over_ranks(seed: int) -> None:
    draw = random.Random(seed)
    records = [drawn(draw, group) for group in range(6) for _ in range(4)]
    whole = merged([sums_of(records)])
    cuts = sorted(draw.sample(range(1, 24), 2))
    ranks = [records[: cuts[0]], records[cuts[0] : cuts[1]], records[cuts[1] :]]
    draw.shuffle(ranks)
    spread = merged([sums_of(each) for each in ranks])
    assert whole is not None
    assert spread is not None
    _assert_equal(whole, spread)


def _assert_equal(one: Signals, other: Signals) -> None:
    assert dict(one.figures) == pytest.approx(dict(other.figures), nan_ok=True)
    assert dict(one.groups) == dict(other.groups)


def test_evidence_shows_what_is_suspicious_then_best_and_worst() -> None:
    plain = [completion(program=f"p{n}", reward=n / 100) for n in range(40)]
    hollow = completion(program="h", outcomes=[PASSED, FAILED, FAILED], reward=0.5)
    shown = choose([*plain, *plain, hollow])
    assert len(shown) == 16
    assert shown[0] is hollow
    assert [each.reward for each in shown[1:5]] == [0.39, 0.0, 0.38, 0.01]
    assert len({each.program for each in shown}) == 16
    assert choose([]) == []
    many = [completion(program=f"m{n}", markers=["exit"], reward=None) for n in range(40)]
    assert len(choose(many)) == 16
