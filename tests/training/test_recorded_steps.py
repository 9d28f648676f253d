"""What a training keeps of each generation beside its completions: the trainer's log-probabilities, and signals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.small_trainer import Memory, coarse_vowels, make_trainer

pytestmark = pytest.mark.torch


def test_each_sampling_step_has_signals(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    memory = Memory()
    make_trainer(tiny_policy(), tmp_path, memory, num_iterations=2, max_steps=4, reward=coarse_vowels).train()
    told = ["signals/completions" in step.metrics for step in memory.steps]
    assert told == ["reward" in step.metrics for step in memory.steps] == [True, False, True, False]
    for step, (_, records, _) in zip(memory.steps[::2], memory.generations, strict=True):
        metrics = step.metrics
        assert metrics["signals/completions"] == len(records) == 8
        assert metrics["signals/groups"] == 2
        silent = sum(column == 0 for column in (step.signal_groups or {})["signal"])
        assert metrics["signals/groups_without_signal"] == silent == 2 * (metrics["frac_reward_zero_std"] or 0)
        assert metrics["signals/reward_max"] == max(record.reward or 0 for record in records)
        assert "signals/passed_visible" not in metrics, "no code reward"
        assert step.to_json()["signal_groups"]["completions"] == [4, 4]
    assert memory.steps[1].signal_groups is None
    assert "signal_groups" not in memory.steps[1].to_json()


@pytest.mark.parametrize("skip_old_logps", [True, False])
def test_the_trainer_s_log_probabilities_are_kept(
    tiny_policy: Callable[..., Path], tmp_path: Path, skip_old_logps: bool
) -> None:
    """From the old policy's pass, or from the training forward; of rows that aren't computed there are none."""
    import torch
    from tests.training.batches.scripted_sampling import Script, ScriptedEngine, score
    from tests.training.batches.windows import policy_logps

    logps = policy_logps(tiny_policy())
    memory = Memory()
    engine = ScriptedEngine(Script(logps))
    settings: dict[str, Any] = {"skip_old_logps": skip_old_logps, "max_completion_length": 12, "max_steps": 1}
    trainer = make_trainer(
        tiny_policy(), tmp_path, memory, reward=score, engine=engine, verify=False,
        per_device_train_batch_size=12, gradient_accumulation_steps=2, **settings,
    )  # fmt: skip
    trainer.train()
    ((_, records, _),) = memory.generations
    assert len(records) == 24
    known = [record for record in records if record.trainer_logps is not None]
    assert {record.signal for record in records} == {True, False}
    expected = [record for record in records if record.advantage] if skip_old_logps else records
    assert known == expected
    for record in known:
        assert record.trainer_logps is not None
        both = torch.tensor([[*record.prompt_ids, *record.completion_ids.tolist()]])
        own = logps(both, torch.ones_like(both), len(record.completion_ids))[0]
        assert torch.tensor(record.trainer_logps) == pytest.approx(own, abs=1e-5)
    metrics = memory.steps[0].metrics
    assert metrics["signals/ess_completions"] == len(known)
    assert 0 < (metrics["signals/ess"] or 0) < 1
    assert metrics["signals/logps_not_finite"] == 0


def test_what_dynamic_sampling_drops_is_in_the_signals(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    memory = Memory()
    make_trainer(
        tiny_policy(), tmp_path, memory, reward=coarse_vowels, max_resample_factor=4.0, max_steps=2, seed=1
    ).train()
    for step, (_, records, _) in zip(memory.steps, memory.generations, strict=True):
        metrics = step.metrics
        assert metrics["signals/groups"] == metrics["sampling/groups_drawn"]
        assert metrics["signals/completions"] == len(records)
        silent = {record.group_id for record in records if record.signal is False}
        assert metrics["signals/groups_without_signal"] == len(silent)
        for record in records:
            if record.dropped_why and "no signal" in record.dropped_why:
                assert record.signal is False
    assert any(not record.kept for _, records, _ in memory.generations for record in records), "some were dropped"
