"""Each alarm on a run with its fault, from a certain step on, and on runs that only look like it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.alarms.lines import FACTS, GROUPS, SIZE, Change, alarms_of, line

from ascent.alarms.facts import RunFacts
from ascent.alarms.line import Line

COUNT = GROUPS * SIZE


def after(begin: int, figures: Mapping[str, Any] | Callable[[int], Mapping[str, Any]]) -> Change:
    """These figures from a step on; a function is given the steps since then."""
    return lambda step: {} if step < begin else figures(step - begin) if callable(figures) else figures


def hollow(share: float) -> Callable[[int], Mapping[str, Any]]:
    rng = random.Random(3)

    def figures(_: int) -> Mapping[str, Any]:
        found = [sum(rng.random() < share for _ in range(4)) for _ in range(GROUPS)]
        return {"signals/hollow": sum(found), "signal_groups": {"hollow": found}}

    return figures


def paid_more(since: int) -> Mapping[str, Any]:
    gained = min(0.4, 0.02 * since)
    return {"reward": 0.5 + gained + random.Random(since).gauss(0, 0.02), "signals/passed_visible": 60 + COUNT * gained}


FAULTS: list[tuple[str, str, Any, int]] = [  # alarm, level, figures from step 100 on, steps until it is told
    ("hollow-passes", "critical", hollow(0.3), 5),
    ("hollow-passes", "critical", hollow(1.0), 1),
    ("reward-without-truth", "critical", paid_more, 30),
    ("tampering", "warn", {"signals/tampering": 6}, 3),
    ("tampering", "critical", {"signals/tampering": 12, "signals/tampering_passed": 1}, 1),
    ("no-signal", "warn", {"signals/groups_without_signal": 12, "signals/groups_all_fail": 11}, 9),
    ("no-signal", "critical", {"signals/groups_without_signal": 16, "signals/groups_all_fail": 16}, 3),
    ("reward-falls", "warn", lambda since: {"reward": 0.2 + random.Random(since).gauss(0, 0.02)}, 20),
    ("collapse", "warn", {"entropy": 0.05, "signals/distinct_share": 0.15}, 20),
    ("repetition", "warn", {"signals/repeated": 30}, 3),
    ("length", "warn", {"completions/mean_length": 55.0}, 12),
    ("length", "warn", {"completions/clipped_ratio": 0.4}, 5),
    ("drift", "warn", lambda since: {"kl": 0.01 + 0.02 * since}, 15),
    ("drift", "critical", {"kl": 3.0}, 10),
    ("ratio", "warn", {"clip_ratio/region_mean": 0.3}, 10),
    ("ratio", "warn", lambda since: {"grad_norm": 50.0 if since % 4 == 0 else 0.5}, 17),
    ("few-effective", "warn", {"signals/ess": 0.4}, 5),
    ("few-effective", "critical", {"signals/ess": 0.1}, 2),
    ("mismatch", "critical", {"sampling/sampling_logp_difference/mean": 0.02}, 3),
    ("not-finite", "critical", {"loss": math.nan}, 1),
    ("not-finite", "critical", {"grad_norm": "inf"}, 1),
    ("not-finite", "critical", {"loss": None}, 1),
    ("not-finite", "critical", {"numerics/rewards_not_finite": 0.05}, 1),
    ("slower", "warn", {"times": {"step": 4.0, "generate": 3.0}}, 15),
    ("slower", "warn", {"signals/sandbox_seconds": 9.0}, 15),
    ("communication", "warn", {"communication/share": 0.6, "communication/weights": 1.1}, 15),
    ("preempted", "warn", {"engine": {"preemptions": 3}}, 5),
    ("unjudged", "warn", {"signals/unscored": 20, "signals/unjudged": 20}, 3),
]


@pytest.mark.parametrize(("name", "level", "figures", "delay"), FAULTS)
def test_a_fault_is_found_soon_and_told_once(name: str, level: str, figures: Any, delay: int) -> None:
    alarms = [alarm for alarm in alarms_of(180, after(100, figures)) if alarm.level != "info"]
    graver = [alarm for alarm in alarms if alarm.name == name and alarm.level == level]
    assert [alarm.name for alarm in graver] == [name], [(each.name, each.level, each.step) for each in alarms]
    assert 100 <= graver[0].step <= 100 + delay + 10, "it may first be milder"
    assert graver[0].step - 100 < delay + 10
    assert graver[0].mend
    assert graver[0].sure


def test_nothing_is_told_of_a_run_without_a_fault() -> None:
    assert not alarms_of(400)


LOOK_ALIKES: dict[str, Any] = {
    "passes by luck": hollow(0.08),
    "reward and truth rise together": lambda since: {
        **paid_more(since),
        "signals/hidden_fraction": 0.5 + min(0.4, 0.02 * since) + random.Random(since + 1).gauss(0, 0.02),
        "signals/solved": 51 + COUNT * min(0.4, 0.02 * since),
    },
    "programs learn to compile": lambda since: {"reward": 0.5 + min(0.1, 0.005 * since)},
    "entropy falls, and it is learned": lambda since: {
        "entropy": 0.1,
        "signals/distinct_share": 0.2,
        "pass_rate": 0.95,
        "reward": 0.95,
        "signals/hidden_fraction": 0.97,
        "signals/solved": 0.95 * COUNT,
    },
    "entropy falls, and programs differ": {"entropy": 0.1},
    "completions grow, and pass more often": {"completions/mean_length": 55.0, "pass_rate": 0.7},
    "completions grow a little": {"completions/mean_length": 35.0},
    "far from the reference, and better for it": lambda since: {
        "kl": 0.01 + 0.01 * min(since, 40),
        "reward": 0.5 + 0.01 * min(since, 40),
        "signals/hidden_fraction": 0.5 + 0.01 * min(since, 40),
    },
    "one large gradient": lambda since: {"grad_norm": 100.0} if since == 5 else {},
    "stale completions": {"rollout/staleness": 1.0, "sampling/sampling_logp_difference/mean": 0.05},
    "a pause": lambda since: {"times": {"step": 60.0, "generate": 59.0}} if since < 3 else {},
    "other work on the machine": {
        "times": {"step": 6.0, "generate": 3.0, "reward_exposed": 0.3, "logps": 0.6, "update": 1.8, "sync": 0.3},
        "signals/sandbox_seconds": 3.0,
    },
    "tasks are learned": {"signals/groups_without_signal": 13, "signals/groups_all_pass": 12, "pass_rate": 0.95},
    "shorter completions": {
        "completions/mean_length": 2.0,
        "completions/max_length": 4.0,
        "times": {"step": 1.2, "generate": 0.6, "update": 0.3},
    },
    "more programs differ, and have to be judged": {
        "signals/distinct_share": 1.0,
        "times": {"step": 2.1, "reward_exposed": 0.12, "update": 0.7},
    },
    "a few without a reward": {"signals/unscored": 3},
    "one program that leaves": {"signals/tampering": 1, "signals/tampering_passed": 1},
    "nothing sampled in a step": lambda since: {name: None for name in line(1) if "/" in name or name == "reward"},
}


@pytest.mark.parametrize("what", LOOK_ALIKES)
def test_what_only_looks_like_a_fault_raises_no_alarm(what: str) -> None:
    alarms = alarms_of(250, after(100, LOOK_ALIKES[what]))
    assert not [(alarm.name, alarm.what) for alarm in alarms if alarm.level != "info"]


def test_a_reward_for_length_is_found_by_tests_that_all_completions_take() -> None:
    """What is paid beside the tests is another function's."""
    facts = replace(FACTS, only_code=False, reward_range=None, compile_reward=0.0)
    rise: Change = after(60, lambda since: {"reward": 0.5 + min(0.5, 0.02 * since), "signals/reward_max": 1.5})
    assert "reward-without-truth" in {alarm.name for alarm in alarms_of(140, rise, facts)}


def test_visible_tests_alone_are_held_against_the_audit() -> None:
    facts = replace(FACTS, reward_tests="visible")

    def audited(since: int) -> Mapping[str, Any]:
        passed = 60 + COUNT * min(0.4, 0.01 * since)
        return {"signals/passed_visible": passed, "signals/hidden_known": passed, "signals/hidden_fraction": 0.9}

    gamed = {alarm.name for alarm in alarms_of(180, after(80, audited), facts)}
    assert "reward-without-truth" in gamed
    parts: Change = after(80, lambda since: {"reward": 0.5 + min(0.3, 0.01 * since), "signals/hidden_known": 60})
    assert "reward-without-truth" not in {alarm.name for alarm in alarms_of(180, parts, facts)}, "parts are paid too"


def test_room_says_what_the_cache_costs() -> None:
    facts = replace(FACTS, max_completion_length=1024)
    unclipped = after(1, {"completions/clipped_ratio": 0.0})
    (alarm,) = alarms_of(60, unclipped, facts)
    assert (alarm.name, alarm.level, alarm.step) == ("room", "info", 30)
    assert alarm.figures["kv_cache_bytes"] == (1024 - 40) * 1024 * 128
    assert "123 MiB" in alarm.what
    assert "about 80" in alarm.mend[0]
    unknown = replace(facts, kv_bytes_per_token=None)
    assert "MiB" not in alarms_of(60, unclipped, unknown)[0].what


@pytest.mark.parametrize(("lost", "told"), [(0.2, True), (0.02, False)])
def test_held_out_tasks_that_are_lost_while_training_tasks_are_won(lost: float, told: bool) -> None:
    rng = random.Random(0)
    first = {f"task/{number}": {"greedy": 1.0, "sampled": rng.choice([0.5, 0.75, 1.0])} for number in range(80)}
    later = {
        task: {"greedy": 0.0, "sampled": rate["sampled"] - (0.5 if rng.random() < 2 * lost else 0.0)}
        for task, rate in first.items()
    }
    evaluations = [{"step": 0, "name": "before", "results": first}, {"step": 99, "name": "during", "results": later}]
    won: Change = after(50, {"pass_rate": 0.7})
    found = [alarm for alarm in alarms_of(120, won, evaluations=evaluations) if alarm.name == "held-out-falls"]
    assert [alarm.step for alarm in found] == ([100] if told else [])
    still = alarms_of(120, evaluations=evaluations)
    assert "held-out-falls" not in {alarm.name for alarm in still}, "training tasks aren't won either"


def test_precision_is_seen_where_the_configuration_leaves_it_open() -> None:
    facts = replace(FACTS, precision=None)
    difference = "sampling/sampling_logp_difference/mean"

    def of(early: float, late: float) -> set[str]:
        return {alarm.name for alarm in alarms_of(60, lambda step: {difference: early if step < 40 else late}, facts)}

    assert "mismatch" in of(1e-6, 5e-4), "the first generations were float32"
    assert "mismatch" not in of(4e-3, 6e-3)
    assert "mismatch" in of(4e-3, 4e-2)
    assert "mismatch" in of(0.2, 0.2), "wrong from the first step on"


def test_runs_of_earlier_releases_are_judged_by_what_they_have() -> None:
    def old(step: int) -> Mapping[str, Any]:
        silent = {"frac_reward_zero_std": 1.0 if step > 50 else 0.2, "pass_rate": 0.0 if step > 50 else 0.4}
        return {name: None for name in line(1) if name.startswith("signal")} | silent

    found = [alarm for alarm in alarms_of(80, old) if alarm.name == "no-signal"]
    assert [(alarm.level, alarm.step) for alarm in found] == [("critical", 60)], "ten generations without any"


def test_facts_may_all_be_unknown() -> None:
    for _, _, figures, _ in FAULTS:
        alarms_of(140, after(100, figures), RunFacts())


def test_no_figure_makes_a_rule_raise() -> None:
    """Whatever a line holds in the place of a figure: it is judged, or it isn't."""
    rng = random.Random(1)
    strange: list[Any] = [None, math.nan, math.inf, -math.inf, "nan", "-inf", "x", 0, -1.0, 1e300, True, [], {}, [None]]

    def change(step: int) -> Mapping[str, Any]:
        names = [name for name in line(1) if name != "step"]
        return {name: rng.choice(strange) for name in rng.sample(names, 12)} if rng.random() < 0.7 else {}

    for _ in range(10):
        evaluations = [{"step": rng.randrange(200), "results": rng.choice([*strange, {"a": {"sampled": 0.5}}])}]
        alarms_of(200, change, RunFacts() if rng.random() < 0.5 else FACTS, evaluations)


def test_one_figure_that_is_no_number_leaves_the_others_judged() -> None:
    def change(step: int) -> Mapping[str, Any]:
        return {"reward": math.nan if step == 90 else 0.2 if step > 100 else 0.5 + random.Random(step).gauss(0, 0.02)}

    assert {alarm.name for alarm in alarms_of(160, change)} == {"not-finite", "reward-falls"}


def test_what_is_not_finite_is_named_with_its_cause() -> None:
    """Sampler and trainer are told apart, and a policy that is sound isn't asked to go back."""
    (rewards,) = alarms_of(40, after(30, {"numerics/rewards_not_finite": 0.05}))
    assert rewards.what == "not a finite number: rewards of 5.0% of the completions"
    assert "divides by" in rewards.mend[0]
    assert not any("checkpoint" in mend for mend in rewards.mend)
    both = {"numerics/logps_not_finite": 0.25, "signals/logps_not_finite": COUNT / 2}
    (logps,) = alarms_of(40, after(30, both))
    assert "the sampler's log-probabilities of 25%" in logps.what
    assert "the trainer's log-probabilities of 50%" in logps.what
    assert any("rollout.dtype" in mend for mend in logps.mend)
    assert any("checkpoint" in mend for mend in logps.mend)


def test_a_whole_number_beyond_any_float_is_not_finite() -> None:
    found = Line.of({"step": 1, "loss": 10**400, "reward": -(10**400)})
    assert found.number("loss") is None
    assert found.is_not_finite("loss")
    assert found.is_not_finite("reward")


@pytest.mark.parametrize(
    ("expected", "share", "level"),
    [
        (None, 0.3, None),
        (None, 0.4, "info"),
        (0.1, 0.18, None),
        (0.1, 0.25, "info"),
        (0.4, 0.7, None),
        (0.4, 0.9, "warn"),
    ],
)
def test_communication_is_held_against_what_was_expected(
    expected: float | None, share: float, level: str | None
) -> None:
    facts = replace(FACTS, communication_share=expected)
    figures = {"communication/share": share, "communication/gathers": 0.7}
    alarms = [each for each in alarms_of(150, after(100, figures), facts=facts) if each.name == "communication"]
    assert [each.level for each in alarms] == ([level] if level else [])
    for each in alarms:
        assert "most of it gathers (0.7 s)" in each.what
        assert (f"{expected:.0%} is what this layout should take" if expected else "communication; most") in each.what
        assert "whether all ranks work equally fast" in each.mend[0]


def test_what_is_expected_of_communication_is_read_from_the_run(tmp_path: Path) -> None:
    from ascent.alarms.facts import expected_communication

    assert expected_communication(tmp_path) is None
    for text, share in (('{"expected_share": 0.07}', 0.07), ('{"expected_share": 7}', None), ("[]", None), ("{", None)):
        (tmp_path / "communication.json").write_text(text)
        assert expected_communication(tmp_path) == share
