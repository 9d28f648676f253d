"""An allocation that fails is explained with the settings that need less; other errors pass as they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ascent.config import RunConfig
from ascent.memory import Plan, card, plan
from ascent.memory.from_config import settings_of
from ascent.rollout.engine import ServerMemoryError
from ascent.tracking.run_directory import RunDirectory
from ascent.training.records.out_of_memory import OutOfMemoryError, explain_out_of_memory

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]


def explained(
    folder: Path,
    phase: str,
    tokens: int | str | None = "auto",
    made: Callable[[RunConfig], Plan | None] = lambda config: None,
    **config: Any,
) -> str:
    """What is said when the host has no memory for a tensor of a petabyte. `made` plans the run."""
    import torch

    arguments: Any = SimpleNamespace(
        process_index=1,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        max_completion_length=32,
        max_tokens_per_batch=tokens,
    )
    settings = RunConfig.model_validate({"model": {"path": "policy"}, **config})
    with (
        pytest.raises(OutOfMemoryError) as told,
        explain_out_of_memory(settings, arguments, RunDirectory(folder), made(settings), lambda: (3, phase)),
    ):
        torch.empty(2**50, dtype=torch.uint8)
    return str(told.value)


def test_what_was_asked_for_and_what_needs_less(tmp_path: Path) -> None:
    said = explained(tmp_path, "update")
    assert "out of memory on the host (process 1) in step 3, computing the loss and the update" in said
    assert "can't allocate memory: you tried to allocate 1125899906842624 bytes" in said
    assert "trainer.per_device_train_batch_size=4 trainer.gradient_accumulation_steps=4 (now 8 and 2)" in said
    assert "gradient_checkpointing" not in said, "it is on already"
    assert "memory.engine_share" not in said, "vLLM takes nothing of it on CPU"
    kept = tmp_path / "failure-rank1.log"
    assert str(kept) in said
    assert "torch.empty(2**50" in kept.read_text()


def test_a_token_budget_is_what_makes_passes_smaller(tmp_path: Path) -> None:
    said = explained(tmp_path, "update", tokens=4096)
    assert "trainer.max_tokens_per_batch=2048, now 4096" in said
    assert "per_device_train_batch_size" not in said


def test_settings_that_would_not_help_are_not_named(tmp_path: Path) -> None:
    sampling = explained(tmp_path, "generate", rollout={"engine": "transformers"})
    assert "trainer.per_device_train_batch_size, now 8" in sampling
    assert "rollout.engine=vllm" in sampling
    assert "lora" not in sampling
    cached = explained(tmp_path, "generate", memory={"kv_cache_mb": 64}, model={"path": "p", "dtype": "bfloat16"})
    assert "memory.kv_cache_mb, now 64" in cached
    assert "model.dtype" not in cached


def test_a_second_gradient_is_named(tmp_path: Path) -> None:
    said = explained(tmp_path, "update", algorithm="gpro")
    assert "algorithm.gradient_penalty_radius=NUMBER" in said
    assert "algorithm.gradient_penalty_parameters=norms" in said
    assert "algorithm=grpo" in said
    assert "model.dtype=bfloat16" not in said, "it is refused with GPRO"
    few = explained(tmp_path, "update", algorithm={"name": "gpro", "gradient_penalty_radius": 0.1})
    assert "gradient_penalty_radius" not in few
    assert "gradient_penalty" not in explained(tmp_path, "update")


def planned(config: RunConfig) -> Plan:
    """A run of a small model on a card; its dimensions are kept with Ascent."""
    settings, _ = settings_of(config, 1, "npu")
    return plan("Qwen/Qwen2.5-0.5B-Instruct", card("910B3"), settings)


def gains_of(said: str) -> dict[str, float]:
    """MiB by setting, in the order in which they are told."""
    found = re.findall(r"^  - (.+?) \(gains ([0-9.]+) ([GM])iB\): ", said, re.MULTILINE)
    return {setting: float(size) * (1024 if unit == "G" else 1) for setting, size, unit in found}


UPDATES: dict[str, Any] = {
    "trainer": {"max_completion_length": 512, "gradient_accumulation_steps": 8},
    "rollout": {"engine": "transformers"},
}


def test_a_planned_run_is_told_what_gains_most_where_memory_ran_out(tmp_path: Path) -> None:
    said = explained(tmp_path, "update", made=planned, **UPDATES)
    gains = gains_of(said)
    assert next(iter(gains)).startswith("model.lora.r=16")
    assert list(gains.values()) == sorted(gains.values(), reverse=True)
    assert gains["model.lora.r=16 model.dtype=bfloat16"] > 5000, "16 bytes for each of half a billion weights"
    config = tmp_path / "config.yaml"
    assert f"`ascent plan {config} --device 'Ascend 910B3'` shows all phases" in said
    assert str(tmp_path / "failure-rank1.log") in said


def test_advice_is_for_the_phase_that_failed(tmp_path: Path) -> None:
    update, sampling = (
        gains_of(explained(tmp_path, phase, made=planned, **UPDATES)) for phase in ("update", "generate")
    )
    assert any("max_tokens_per_batch" in each for each in update)
    assert not any("max_tokens_per_batch" in each for each in sampling)
    told = explained(tmp_path, "generate", made=planned, **UPDATES)
    assert "- trainer.per_device_train_batch_size, now 8" in told, "the plan doesn't know it"
    assert "- rollout.engine=vllm" in told
    assert "rollout.engine" not in explained(tmp_path, "update", made=planned, **UPDATES)
    cached = explained(tmp_path, "sync", made=planned, memory={"kv_cache_mb": 64})
    assert "- memory.kv_cache_mb, now 64" in cached


def test_a_planned_second_gradient_is_named_with_what_it_takes(tmp_path: Path) -> None:
    gains = gains_of(explained(tmp_path, "update", made=planned, algorithm="gpro", **UPDATES))
    assert gains["algorithm=grpo"] > gains["algorithm.gradient_penalty_radius=NUMBER"]
    assert "algorithm.gradient_penalty_parameters=norms" in gains
    assert "model.dtype=bfloat16" not in gains, "it is refused with GPRO"


def test_where_the_plan_sees_nothing_to_gain_the_settings_are_named(tmp_path: Path) -> None:
    def without_scores(config: RunConfig) -> Plan:
        made = planned(config)
        assert "log-probabilities" not in [phase.name for phase in made.phases]
        return made

    said = explained(tmp_path, "logps", made=without_scores, **UPDATES)
    assert "What needs less memory, cheapest first:" in said
    assert "trainer.max_completion_length, now 32" in said


def test_other_errors_pass(tmp_path: Path) -> None:
    settings, arguments = RunConfig.model_validate({"model": {"path": "policy"}}), SimpleNamespace(process_index=0)
    with (
        pytest.raises(RuntimeError, match="shape"),
        explain_out_of_memory(settings, arguments, RunDirectory(tmp_path), None, lambda: (1, "update")),  # type: ignore[arg-type]
    ):
        raise RuntimeError("shape mismatch")
    assert not list(tmp_path.iterdir())


def test_a_server_s_memory_is_not_told_as_the_trainer_s(tmp_path: Path) -> None:
    settings, arguments = RunConfig.model_validate({"model": {"path": "policy"}}), SimpleNamespace(process_index=0)
    with (
        pytest.raises(ServerMemoryError),
        explain_out_of_memory(settings, arguments, RunDirectory(tmp_path), None, lambda: (1, "sync")),  # type: ignore[arg-type]
    ):
        raise ServerMemoryError("a sampling server ran out of memory: NPU out of memory")
    assert not list(tmp_path.iterdir())
