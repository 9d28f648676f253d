"""The configuration of a small run, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def write_config(path: Path, model: Path, tasks: Path, **trainer: Any) -> Path:
    """A run of three steps in `path`, with the transformers engine; `trainer` are further settings of GRPOConfig."""
    config = {
        "model": {"path": str(model)},
        "tasks": {"train": str(tasks), "held_out": 2},
        "rollout": {"engine": "transformers"},
        "sandbox": {"require": "none"},
        "tracking": {"folder": str(path.parent / "runs"), "name": "run", "eval_samples": 2, "report": False},
        "trainer": {
            "num_generations": 4,
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 1,
            "max_completion_length": 1,  # of random tokens, one in five compiles, so that rewards differ
            "learning_rate": 1e-2,
            "max_steps": 3,
            "gradient_checkpointing": False,
            "seeded_sampling": True,  # of vLLM's engines: runs are compared with each other
            **trainer,
        },
    }
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path
