"""The FSDP settings of the Ascend examples, with real training and sampling: two CPU processes, sharding forced on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ascent import config
from ascent.tracking import run_directory
from ascent.tracking.run_directory import read_json_lines
from ascent.training.export import export

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(3600)]
EXAMPLES = Path(__file__).parents[2] / "examples" / "ascend"


@pytest.mark.parametrize(
    ("example", "dtype", "largest_mean"),
    [("qwen2.5-7b-8-cards.yaml", "float32", 1e-5), ("qwen2.5-32b-lora-tp4.yaml", "bfloat16", 1e-2)],
    ids=["full weights, colocated", "LoRA, server"],
)
def test_sharded_training_feeds_the_engine_saves_and_resumes(
    example: str, dtype: str, largest_mean: float, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    settings = yaml.safe_load((EXAMPLES / example).read_text("utf-8"))
    run = run_directory.create(tmp_path, "run")
    small = _small(settings, tiny_policy(tied=False, dtype=dtype), task_file, dtype)
    _write(run.config, small)
    _train(run.path)
    lines = read_json_lines(run.path / "metrics.jsonl")
    assert len(lines) == 3
    # What moved the weights arrived: a learning rate this high would show in the engine's log-probabilities at once.
    assert any(line["grad_norm"] > 0 for line in lines)
    assert max(line["sampling/sampling_logp_difference/mean"] for line in lines) < largest_mean
    # accelerate writes this file only when the model was sharded
    assert (run.checkpoints / "checkpoint-2" / "pytorch_model_fsdp.bin").is_file()
    weights = "adapter_model.safetensors" if settings["model"].get("lora") else "model.safetensors"
    assert (run.path / "model" / weights).is_file()
    for checkpoint in (2, None):
        exported = export(run.path, checkpoint=checkpoint).folder
        assert str(AutoModelForCausalLM.from_pretrained(exported, dtype="auto").dtype) == f"torch.{dtype}"
    small["trainer"]["max_steps"] = 4
    _write(run.config, small)
    _train(run.path, "--resume")
    assert [line["step"] for line in read_json_lines(run.path / "metrics.jsonl")] == [1, 2, 3, 4]


def _small(settings: dict[str, Any], policy: Path, tasks: Path, dtype: str) -> dict[str, Any]:
    """The example with a policy of two layers: its settings of FSDP and LoRA, but for the layer's name."""
    fsdp = {**settings["trainer"]["fsdp_config"], "fsdp_transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
    return {
        "model": {**settings["model"], "path": str(policy), "dtype": dtype},
        "tasks": {"train": str(tasks), "held_out": 2},
        "sandbox": {"require": "none"},
        "rollout": {
            key: settings["rollout"][key] for key in ("mode", "staleness", "verify") if key in settings["rollout"]
        },
        "memory": {"kv_cache_mb": 32},
        "tracking": {"evaluate": settings["tracking"].get("evaluate", True), "eval_samples": 1},
        "trainer": {
            "num_generations": 4,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 1,
            "max_completion_length": 1,  # of random tokens, one in five compiles, so that rewards differ
            "learning_rate": 1e-2,
            "max_steps": 3,
            "save_steps": 2,
            "fsdp": settings["trainer"]["fsdp"],
            "fsdp_config": fsdp,
            "gradient_checkpointing": settings["trainer"]["gradient_checkpointing"],
        },
    }


def _write(file: Path, settings: dict[str, Any]) -> None:
    file.write_text(config.RunConfig.model_validate(settings).to_yaml(), "utf-8")


def _train(run: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [str(Path(__file__).with_name("sharded_worker.py")), str(run), *arguments]
    environment = {**os.environ, "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
