"""Lines of metrics.jsonl of a small run in which nothing is wrong, and what a test changes in them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ascent.alarms.alarm import Alarm
from ascent.alarms.facts import RunFacts
from ascent.alarms.fold import Fold, fold

FACTS = RunFacts(
    beta=0.04,
    learning_rate=5e-4,
    temperature=1.0,
    epsilon_high=0.2,
    num_generations=8,
    max_completion_length=64,
    reward_range=1.0,
    compile_reward=0.1,
    only_code=True,
    reward_tests="both",
    precision="float32",
    sequences=128,
    kv_bytes_per_token=1024,
)
GROUPS, SIZE = 16, 8
Change = Callable[[int], Mapping[str, Any]]  # step -> figures in the place of the usual ones


def line(step: int, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """One line. Keys of `changes` replace figures; `signal_groups`, `times` and `engine` are added to."""
    rng = random.Random(step)
    count = GROUPS * SIZE
    usual: dict[str, Any] = {
        "step": step,
        "total_steps": 1000,
        "generation": step - 1,
        "loss": rng.gauss(0, 0.01),
        "grad_norm": 0.5 + 0.1 * rng.random(),
        "entropy": 1.0 + rng.gauss(0, 0.02),
        "kl": 0.01,
        "reward": 0.5 + rng.gauss(0, 0.02),
        "frac_reward_zero_std": 0.25,
        "pass_rate": 0.4 + rng.gauss(0, 0.02),
        "clip_ratio/region_mean": 0.01,
        "completions/mean_length": 20.0,
        "completions/max_length": 40.0,
        "completions/max_terminated_length": 40.0,
        "completions/clipped_ratio": 0.01,
        "sampling/sampling_logp_difference/mean": 1e-6 * (1 + 0.2 * rng.random()),
        "rollout/staleness": 0.0,
        "signals/groups": GROUPS,
        "signals/completions": count,
        "signals/groups_without_signal": 4,
        "signals/groups_all_pass": 1,
        "signals/groups_all_fail": 3,
        "signals/passed_visible": 60,
        "signals/passers_known": 60,
        "signals/hollow": 0,
        "signals/hidden_known": count,
        "signals/hidden_fraction": 0.5 + rng.gauss(0, 0.02),
        "signals/solved": 51,
        "signals/reward_min": 0.0,
        "signals/reward_max": 1.0,
        "signals/tampering": 0,
        "signals/tampering_passed": 0,
        "signals/unscored": 0,
        "signals/unjudged": 0,
        "signals/repeated": 0,
        "signals/distinct_share": 0.8,
        "signals/ess": 0.95,
        "signals/ess_completions": count,
        "signals/logps_not_finite": 0,
        "signals/sandbox_seconds": 1.0,
        "communication/gradients_exposed": 0.05,
        "communication/gathers": 0.03,
        "communication/weights": 0.02,
        "communication/share": 0.05,
        "signal_groups": {"passers_known": [4] * GROUPS, "hollow": [0] * GROUPS},
        "times": {"step": 2.0, "generate": 1.0, "reward_exposed": 0.1, "logps": 0.2, "update": 0.6, "sync": 0.1},
        "engine": {"preemptions": 0},
    }
    for name, value in (changes or {}).items():
        added_to = isinstance(value, Mapping) and isinstance(usual.get(name), Mapping)
        usual[name] = {**usual[name], **value} if added_to else value
    return usual


def run(steps: int, change: Change = lambda step: {}) -> list[dict[str, Any]]:
    """The lines of a run of so many steps."""
    return [line(step, change(step)) for step in range(1, steps + 1)]


def alarms_of(
    steps: int, change: Change = lambda step: {}, facts: RunFacts = FACTS, evaluations: Sequence[Any] = ()
) -> list[Alarm]:
    """The alarms of such a run."""
    return fold(run(steps, change), facts, evaluations)[0]


def state_of(steps: int, change: Change = lambda step: {}, facts: RunFacts = FACTS) -> Fold:
    """The fold after such a run."""
    return fold(run(steps, change), facts)[1]
