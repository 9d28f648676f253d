"""TRL's GRPO on the software NPU takes the same steps as on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.softnpu_env import ROOT, run_softnpu

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]
Environment = Callable[..., dict[str, str]]

# Arguments: the policy's folder, a folder for output, options of GRPOConfig as JSON.
GRPO = """
import json, sys
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

policy, output, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
load = options.pop("load", {})
completions = []

def reward(completion_ids, **_):
    completions.append(completion_ids)
    return [float(sum(ids) % 7) for ids in completion_ids]

peft = None
if options.pop("peft", False):
    from peft import LoraConfig
    peft = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
defaults = dict(
    output_dir=output, per_device_train_batch_size=4, num_generations=4, max_completion_length=8, max_steps=3,
    learning_rate=1e-3, logging_steps=1, report_to=[], bf16=False, seed=3, save_strategy="no", disable_tqdm=True)
trainer = GRPOTrainer(
    AutoModelForCausalLM.from_pretrained(policy, **load),
    reward_funcs=reward, args=GRPOConfig(**{**defaults, **options}),
    train_dataset=Dataset.from_dict({"prompt": [f"Add {i} to" for i in range(8)]}), peft_config=peft,
    processing_class=AutoTokenizer.from_pretrained(policy))
start = {name: p.detach().cpu().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
trainer.train()
steps = [row for row in trainer.state.log_history if "loss" in row]
print(json.dumps({
    "device": str(next(trainer.model.parameters()).device),
    "attention": trainer.model.config._attn_implementation, "completions": completions,
    "loss": [row["loss"] for row in steps], "reward": [row["reward"] for row in steps],
    "gradient": [row["grad_norm"] for row in steps], "entropy": [row["entropy"] for row in steps],
    "moved": max(float((p.detach().cpu() - start[name]).abs().max())
                 for name, p in trainer.model.named_parameters() if p.requires_grad),
    "weights": [float(p.detach().double().abs().sum()) for p in trainer.model.parameters()],
}))
"""


def grpo(policy: Path, output: Path, environment: dict[str, str], **options: Any) -> dict[str, Any]:
    quiet = {**environment, "CI": "1", "HF_HUB_OFFLINE": "1"}
    answer = json.loads(run_softnpu(GRPO, policy, output, json.dumps(options), environment=quiet).splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


@pytest.fixture(scope="module")
def plain() -> dict[str, str]:
    """An ordinary process: no software NPU."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}


def test_grpo_is_the_cpus(
    tiny_policy: Callable[..., Path], softnpu: Environment, plain: dict[str, str], tmp_path: Path
) -> None:
    on_npu = grpo(tiny_policy(), tmp_path / "npu", softnpu())
    on_cpu = grpo(tiny_policy(), tmp_path / "cpu", plain, use_cpu=True)
    assert (on_npu["device"], on_cpu["device"]) == ("npu:0", "cpu")
    assert on_npu["completions"] == on_cpu["completions"]
    assert len(on_npu["completions"]) == 3
    assert on_npu["reward"] == on_cpu["reward"]
    for figure, tolerance in {"loss": 1e-5, "gradient": 1e-4, "entropy": 1e-5, "weights": 1e-4}.items():
        assert on_npu[figure] == pytest.approx(on_cpu[figure], abs=tolerance), figure
    assert on_npu["moved"] > 1e-3  # three steps of Adam at 1e-3: the comparison is of something that happened


SWEEP: dict[str, dict[str, Any]] = {
    "bf16": {"bf16": True},
    "fp16 with a scaler": {"fp16": True},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "LoRA and a reference": {"peft": True, "beta": 0.1},
    "flash_attention_2": {"load": {"attn_implementation": "flash_attention_2", "dtype": "bfloat16"}},
    "device_map": {"load": {"device_map": "auto"}},
    "full determinism": {"full_determinism": True},
    "workers": {"dataloader_num_workers": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEP)
def test_grpo_with_options(name: str, tiny_policy: Callable[..., Path], softnpu: Environment, tmp_path: Path) -> None:
    found = grpo(tiny_policy(), tmp_path, softnpu(own_rng=True), **SWEEP[name])
    assert found["device"] == "npu:0"
    assert found["attention"] == SWEEP[name].get("load", {}).get("attn_implementation", "sdpa")
    assert len(found["loss"]) == 3
    assert found["moved"] > 1e-5


@pytest.mark.slow
def test_a_resumed_run_repeats_the_whole_one(
    tiny_policy: Callable[..., Path], softnpu: Environment, tmp_path: Path
) -> None:
    """The device's own generator is in the checkpoint: what follows it is drawn again."""
    environment = softnpu(own_rng=True)
    saved = {"save_strategy": "steps", "save_steps": 2}
    whole = grpo(tiny_policy(), tmp_path / "one", environment, max_steps=4, **saved)
    resumed = f"trainer.train(resume_from_checkpoint={str(tmp_path / 'one/checkpoint-2')!r})"
    program = GRPO.replace("trainer.train()", resumed)
    options = json.dumps({"max_steps": 4})
    quiet = {**environment, "CI": "1", "HF_HUB_OFFLINE": "1"}
    out = run_softnpu(program, tiny_policy(), tmp_path / "two", options, environment=quiet)
    rest = json.loads(out.splitlines()[-1])
    assert rest["completions"] == whole["completions"][2:]
    assert rest["weights"] == whole["weights"]


@pytest.mark.slow
def test_accelerate_env_and_launch(softnpu: Environment, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("from accelerate import Accelerator; a = Accelerator(); print(a.device, a.num_processes)\n")
    for command, expected in (
        (["env"], "CANN version: none (software NPU)"),
        (["launch", "--num_processes", "2", "--multi_gpu", str(script)], "npu:1 2"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "accelerate.commands.accelerate_cli", *command],
            env=softnpu(devices=2),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert expected in done.stdout
