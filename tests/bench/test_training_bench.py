"""A training step on the bench: its bound, what holds it back, what is advised, and a change that is tried."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.run_config import write_config
from tests.trial_rows import line, row, rows, tried

from ascent import config
from ascent.bench.training.applying import Applied, apply, with_settings
from ascent.bench.training.benching import bench_training
from ascent.bench.training.changes import Change, Situation, changes
from ascent.bench.training.measured import Measured, measured
from ascent.bench.training.ratio import Ratio, ratio
from ascent.bench.training.report import TrainingBench
from ascent.bench.training.trained_tokens import trained_tokens
from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.training.trial.found import Dense, Tried

pytestmark = pytest.mark.torch
DENSE = Dense(0.001, 8, 4, 10)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., RunConfig]:
    """settings("rollout.engine=vllm", ...): a configuration of 8 completions a step, 4 of a prompt."""

    def load(*overrides: str) -> RunConfig:
        return config.load(write_config(tmp_path / "c.yaml", tmp_path, tmp_path), list(overrides))[0]

    return load


def a_trial(completions: list[dict[str, Any]] | None = None, **seconds: float) -> Tried:
    """Three steps of 8 completions, of which two are timed; a step takes what `seconds` say, in the first tenfold."""
    lines = [
        line(step, **{name: each * (10 if step == 1 else 1) for name, each in seconds.items()}) for step in (1, 2, 3)
    ]
    given = completions if completions is not None else rows(2)
    sampled = [{**each, "generation": step - 1, "step": step} for step in (1, 2, 3) for each in given]
    return tried(lines, sampled, dense=DENSE, optimizer=[0.5, 0.1, 0.1])


def advised(here: RunConfig, found: Tried, cores: int = 2) -> dict[str, Change]:
    return {change.words: change for change in changes(Situation(here, measured(found), found, cores))}


# ---- the bound -----------------------------------------------------------------------------------------------------


def test_the_bound_of_a_step() -> None:
    found = measured(a_trial(generate=1.0, reward_exposed=0.5, update=0.4, sync=0.1))
    needed = 2 * 4 + 8 * 10  # two prompts, and eight different completions
    assert found.needed == needed
    assert found.bound == pytest.approx(1.0 + 0.001 * needed + 0.1 + 0.1)
    assert found.step == pytest.approx(2.0)
    assert found.to_bound.mean == pytest.approx(2.0 / found.bound)
    assert (found.samples, found.tokens, found.steps) == (8, 80, 2)
    assert found.held_by == "reward_exposed"
    assert found.largest == "generate"


def test_what_carries_no_gradient_is_not_needed() -> None:
    given = [row(0, 0), row(0, 0), row(0, 1, advantage=0.0), row(1, 0, kept=False), row(2, 0, advantage=None)]
    found = measured(a_trial(given, update=1.0))
    assert found.needed == 4 + 10, "equal ones count once; dropped, masked and silent ones not at all"
    assert found.silent == pytest.approx(2 / 4), "of those that were to be trained on"


def test_a_generation_for_several_steps() -> None:
    lines = [line(step, update=1.0) | {"generation": 0} for step in (1, 2, 3, 4)]
    found = measured(tried(lines, rows(2), dense=DENSE, optimizer=[0.0] * 4))
    assert found.samples == 2
    assert found.needed == pytest.approx((8 + 80) / 4)


def test_nothing_far_above_the_bound() -> None:
    found = measured(a_trial(generate=1.0, update=0.19))
    assert found.held_by is None
    assert "Nothing in the step is far above" in TrainingBench("cpu", 1, found, ()).to_text()


def test_nothing_measured() -> None:
    with pytest.raises(InputError, match="no step was measured"):
        measured(tried([], []))


def test_ratio_of_one_round_has_no_interval() -> None:
    assert str(ratio([2.0])) == "2.00 (once)"
    found = ratio([2.0, 2.0, 2.0])
    assert (found.low, found.high) == pytest.approx((2.0, 2.0))


# ---- what is advised -----------------------------------------------------------------------------------------------


def test_tokens_of_an_update_without_and_with_savings() -> None:
    given = [row(0, 0), row(0, 1, completion_ids=[1] * 40), row(0, 2, advantage=0.0), row(0, 0)]
    plain = {"max_tokens_per_batch": None, "skip_zero_advantage": False, "per_device_train_batch_size": 4}
    assert trained_tokens(given, plain) == 4 * (4 + 40), "all padded to the longest"
    assert trained_tokens(given, plain | {"skip_zero_advantage": True}) == 3 * (4 + 40)
    assert trained_tokens(given, {"per_device_train_batch_size": 4}) == 4 + 40 + 10, "the prompt once, equal rows once"
    apart = {"per_device_train_batch_size": 1, "shared_prompt": "off"}
    assert trained_tokens(given, apart) == 44 + 14 + 14 - 14, "a pass of the long one, one of the equal ones"


def test_savings_that_are_off(settings: Callable[..., RunConfig]) -> None:
    found = a_trial(generate=1.0, update=1.1, logps=0.3)
    assert not advised(settings(), found), "with all of them on there is nothing to switch on"
    here = settings("trainer.skip_zero_advantage=false", "trainer.skip_old_logps=false")
    (change,) = advised(here, found).values()
    assert change.words == "trainer.skip_zero_advantage=true trainer.skip_old_logps=true"
    assert change.most == pytest.approx(0.3), "every row has an advantage: only the pass of its own is saved"


def test_checkpointing_only_where_memory_is(settings: Callable[..., RunConfig]) -> None:
    found = a_trial(generate=1.0, update=1.1)
    here = settings("trainer.gradient_checkpointing=true")
    assert not advised(here, found)
    roomy = tried(
        [dict(each) for each in found.lines],
        [dict(each) for each in found.rows],
        dense=DENSE,
        optimizer=[0.1] * 3,
        fits=["trainer.gradient_checkpointing=false"],
    )
    assert advised(here, roomy)["trainer.gradient_checkpointing=false"].most == pytest.approx(0.25)


def test_the_engine(settings: Callable[..., RunConfig]) -> None:
    found = a_trial(generate=1.0, update=0.2)
    vllm = settings("rollout.engine=vllm", "trainer.seeded_sampling=true", "rollout.max_num_seqs=2")
    here = advised(vllm, found)
    assert set(here) == {"rollout.enforce_eager=false", "trainer.seeded_sampling=false", "rollout.max_num_seqs=8"}
    assert here["rollout.max_num_seqs=8"].most == pytest.approx(0.75), "four waves become one"
    assert here["trainer.seeded_sampling=false"].alters
    assert 0 < here["trainer.seeded_sampling=false"].least < here["trainer.seeded_sampling=false"].most < 0.5


def test_a_cache_that_is_too_small(settings: Callable[..., RunConfig]) -> None:
    found = a_trial(generate=1.0, update=0.2)
    for each in found.lines:
        each["engine"]["preemptions"] = 2
    here = advised(settings("rollout.engine=vllm", "memory.kv_cache_mb=16", "rollout.enforce_eager=false"), found)
    assert here["memory.kv_cache_mb=32"].most == pytest.approx(0.25), "two of eight completions are computed again"


def test_a_long_tail_and_servers(settings: Callable[..., RunConfig]) -> None:
    late = rows(2)
    late[-1]["sample_seconds"] = 4.0
    here = advised(settings("rollout.engine=vllm", "rollout.enforce_eager=false"), a_trial(late, generate=1.0))
    assert here["trainer.oversample_factor=1.25"].most == pytest.approx(0.75)
    served = settings("rollout.engine=vllm", "rollout.enforce_eager=false", "rollout.mode=server")
    assert advised(served, a_trial(generate=1.0, update=0.4))["rollout.staleness=1"].most == pytest.approx(0.4)


def test_rewards_that_are_waited_for(settings: Callable[..., RunConfig]) -> None:
    found = a_trial(generate=1.0, reward_exposed=2.0)
    assert advised(settings(), found, cores=8)["sandbox.slots=8"].most == pytest.approx(1.0), "half of the cores judge"
    assert not advised(settings("sandbox.slots=8"), found, cores=8)
    stuck = rows(2)
    stuck[0]["sandbox_seconds"] = 10.0
    here = advised(settings("sandbox.slots=2"), a_trial(stuck, reward_exposed=2.0))
    assert here["sandbox.wall_seconds=1.0"].alters
    no_tests = rows(2, sandbox_seconds=None)
    assert not advised(settings(), a_trial(no_tests, reward_exposed=2.0), cores=8), "a reward without a sandbox"


def test_the_largest_gain_comes_first(settings: Callable[..., RunConfig]) -> None:
    found = a_trial(generate=4.0, reward_exposed=0.5, update=0.2)
    here = settings("rollout.engine=vllm", "rollout.max_num_seqs=2")
    gains = [change.expected for change in changes(Situation(here, measured(found), found, 8))]
    assert len(gains) > 2
    assert gains == sorted(gains, reverse=True)


# ---- a change that is tried ----------------------------------------------------------------------------------------


def stood_in(step: float, scale: float = 0.0) -> Measured:
    found = measured(a_trial(generate=step))
    return Measured(**{
        **{name: getattr(found, name) for name in Measured.__slots__},
        "step_seconds": {number: step * (1 + scale * number) for number in (2, 3, 4)},
    })  # fmt: skip


def tried_change(here: RunConfig, before: float, after: float, scale: float = 0.0) -> tuple[Applied, list[object]]:
    asked: list[object] = []

    def measure(given: RunConfig) -> Measured:
        asked.append(given.sandbox.slots)
        return stood_in(after if given.sandbox.slots == 2 else before, scale if len(asked) % 2 else -scale)

    change = Change({"sandbox.slots": 2}, "why", 0.0, 0.5)
    return apply(here, change, stood_in(before, scale), measure, lambda text: None), asked


def test_turns_are_taken(settings: Callable[..., RunConfig]) -> None:
    applied, asked = tried_change(settings(), 2.0, 1.0)
    assert asked == [2, None, 2], "the first without it was measured before"
    assert applied.verdict == "faster"
    assert applied.faster is not None
    assert applied.faster.mean == pytest.approx(2.0)
    assert applied.faster.rounds == 6
    assert tried_change(settings(), 1.0, 2.0)[0].verdict == "slower"
    assert tried_change(settings(), 1.0, 1.01, scale=0.1)[0].verdict == "no difference"


def test_a_change_with_which_it_does_not_run(settings: Callable[..., RunConfig]) -> None:
    def measure(given: RunConfig) -> Measured:
        raise InputError("out of memory on npu:0")

    applied = apply(settings(), Change({"sandbox.slots": 2}, "", 0, 1), stood_in(1.0), measure, lambda text: None)
    found = TrainingBench("npu", 1, stood_in(1.0), (applied.change,), applied)
    assert applied.verdict == "failed"
    assert not found.good
    assert not found.fragment
    assert "didn't run with it. Out of memory on npu:0." in found.to_text()


def test_only_what_was_shown_goes_into_the_fragment(settings: Callable[..., RunConfig]) -> None:
    change = Change({"trainer.shared_prompt": "auto", "rollout.prefix_caching": True}, "why", 0.1, 0.2)
    faster = Applied(change, Ratio(1.5, 1.2, 1.8, 6), (2.0, 2.0), (1.4, 1.3))
    found = TrainingBench("cpu", 1, stood_in(2.0), (change,), faster)
    assert yaml.safe_load(found.yaml()) == {"trainer": {"shared_prompt": "auto"}, "rollout": {"prefix_caching": True}}
    assert "shared_prompt: auto" in found.to_text()
    assert json.loads(json.dumps(found.to_json()))["fragment"] == found.fragment
    unsure = Applied(change, Ratio(1.5, 0.9, 2.5, 6), (2.0, 2.0), (1.4, 1.3))
    assert not TrainingBench("cpu", 1, stood_in(2.0), (change,), unsure).fragment


def test_settings_by_their_keys(settings: Callable[..., RunConfig]) -> None:
    here = settings()
    changed = with_settings(here, {"trainer.beta": 0.1, "sandbox.slots": 3})
    assert (changed.trainer["beta"], changed.sandbox.slots) == (0.1, 3)
    assert changed.trainer["num_generations"] == 4
    assert "beta" not in here.trainer
    with pytest.raises(InputError, match=r"sandbox\.slots"):
        with_settings(here, {"sandbox.slots": 0})


# ---- real steps ----------------------------------------------------------------------------------------------------


def test_a_real_step(tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path) -> None:
    settings, _ = config.load(write_config(tmp_path / "c.yaml", tiny_policy(), task_file, max_completion_length=16))
    said: list[str] = []
    found = bench_training(settings, steps=2, say=said.append)
    assert found.found.steps == 2
    assert found.found.per_token > 0
    assert found.found.optimizer > 0
    assert sum(found.found.phases.values()) == pytest.approx(found.found.step)
    assert 0 < found.found.bound < found.found.step
    assert found.found.samples == 8
    assert not (tmp_path / "runs").exists(), "it is thrown away"
    assert said
    json.dumps(found.to_json())


def test_what_cant_be_measured(tmp_path: Path, task_file: Path) -> None:
    settings, _ = config.load(write_config(tmp_path / "c.yaml", tmp_path / "absent", task_file))
    with pytest.raises(InputError, match="1 steps are too few"):
        bench_training(settings, steps=1, say=lambda text: None)


@pytest.mark.slow
def test_a_training_that_does_not_run(
    tmp_path: Path, tiny_policy: Callable[..., Path], task_file: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings, _ = config.load(write_config(tmp_path / "c.yaml", tiny_policy(), task_file), ["tasks.limit=1"])
    with pytest.raises(InputError, match="1 training tasks, but a generation takes 2"):
        bench_training(settings, steps=2, say=lambda text: None)
    assert "error:" not in capfd.readouterr().err, "whoever asked tells it"


@pytest.mark.slow
def test_a_real_step_with_vllm(tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path) -> None:
    """Its loss has the sampler's log-probabilities in it."""
    path = write_config(tmp_path / "c.yaml", tiny_policy(tied=False), task_file, max_completion_length=8)
    settings, _ = config.load(path, ["rollout.engine=vllm", "memory.kv_cache_mb=16"])
    found = bench_training(settings, steps=2, say=lambda text: None)
    assert found.found.phases["sync"] > 0
    assert 0 < found.found.bound < found.found.step
    assert "trainer.seeded_sampling=false" in [change.words for change in found.changes]


@pytest.mark.slow
def test_a_saving_is_advised_and_tried_in_turns(
    tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of 130 tokens for completions of 4, computed anew for each of 64 completions. Rewards cost nothing.

    How much faster it is, is not asserted: that is a measurement of a machine.
    """
    (tmp_path / "length_reward.py").write_text(
        "def length(completions, **_):\n    return [len(c) for c in completions]\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    given = {"max_completion_length": 4, "per_device_train_batch_size": 64, "num_generations": 32, "max_steps": 9}
    off = {
        "shared_prompt": "off",
        "reuse_equal_rows": False,
        "skip_zero_advantage": False,
        "max_tokens_per_batch": None,
    }
    settings, _ = config.load(
        write_config(tmp_path / "c.yaml", tiny_policy(), task_file, **given, **off),
        ["reward.functions=[length_reward:length]"],
    )
    found = bench_training(settings, steps=4, apply=True, say=lambda text: None)
    assert found.applied is not None
    assert "trainer.shared_prompt=auto" in found.applied.change.words
    assert found.applied.faster is not None
    assert found.applied.faster.rounds == 8, "two turns of four steps"
    assert len(found.applied.before) == len(found.applied.after) == 2
    assert bool(found.fragment) == (found.applied.verdict == "faster")
