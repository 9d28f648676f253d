"""vLLM inside the trainer's process, whatever the device that trains: the engine has the trained weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.small_trainer import Memory, make_trainer

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]  # on CPU test_train_command.py covers it, with two processes


def test_the_engine_samples_with_the_trained_weights(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    from ascent import devices
    from ascent.rollout.engine import EngineSettings
    from ascent.rollout.platform import engine_kind

    dtype = "float32" if engine_kind() == "cpu" else "bfloat16"
    settings = EngineSettings(str(tiny_policy()), dtype, max_model_len=64, kv_cache_bytes=16 * 2**20)
    memory = Memory()
    trainer = make_trainer(tiny_policy(), tmp_path, memory, engine=settings)
    try:
        trainer.train()
        assert trainer.accelerator.device.type == devices.kind()
        assert next(trainer.model.parameters()).device == devices.current()
        assert any(step.metrics["grad_norm"] for step in memory.steps), "the weights never moved"
        for step in memory.steps:
            difference = step.metrics["sampling/sampling_logp_difference/mean"]
            assert difference is not None
            assert difference <= (1e-4 if dtype == "float32" else 0.02)
        assert [record.weight_version for _, records, _ in memory.generations for record in records[:1]] == [0, 1, 2, 3]
    finally:
        trainer.engine.close()
