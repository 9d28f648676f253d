"""The trainers that are compared: TRL's own with two ways of sampling, and Ascent's with all savings, none, or one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from ascent.config.trl_fields import NOTHING_SAVED
from stepping.workloads import QUICKSTART, WORKLOADS, free_reward, free_verdicts, make_policy, make_prompts

ROOT = Path(__file__).resolve().parents[2]
_MANY = 100_000  # steps: the benchmark says when to end


@dataclass(frozen=True, slots=True)
class System:
    """A trainer. `savings` are its fields of `ascent.GRPOConfig`; `free`: its reward costs nothing, on the quickstart
    too, where the real one is a sandbox."""

    trainer: Literal["trl", "ascent"]
    vllm: bool = True
    savings: tuple[tuple[str, Any], ...] = ()
    free: bool = False


_ALONE: dict[str, dict[str, Any]] = {
    "budget": {"max_tokens_per_batch": "auto"},
    "shared-prompt": {"shared_prompt": "auto"},
    "zero-advantage": {"skip_zero_advantage": True},
    "equal-rows": {"reuse_equal_rows": True},
    "old-logps": {"skip_old_logps": True},
}
# Measures TRL's forward and backward pass of a dense batch, for the bound.
DENSE = "dense"
SYSTEMS: dict[str, System] = {
    "trl-transformers": System("trl", vllm=False),
    "trl-vllm": System("trl"),
    "ascent": System("ascent"),
    "ascent-free": System("ascent", free=True),
    "ascent-none": System("ascent", savings=tuple(NOTHING_SAVED.items())),
    **{
        f"ascent-{name}": System("ascent", savings=tuple({**NOTHING_SAVED, **one}.items()))
        for name, one in _ALONE.items()
    },
    DENSE: System("trl", vllm=False, free=True),
}
MAIN = ("trl-transformers", "trl-vllm", "ascent", DENSE)
SAVINGS = ("ascent-none", *(f"ascent-{name}" for name in _ALONE), "ascent")


def build(system: System, workload: str, folder: Path, stack: contextlib.ExitStack) -> Any:
    """A trainer that has not begun. `stack` closes what it needs."""
    if system.trainer == "trl" and system.vllm:
        _keep_weights_as_they_are()
    make = _quickstart if workload == QUICKSTART else _synthetic
    trainer = make(system, workload, folder, stack)
    if getattr(trainer, "engine", None) is not None:
        stack.callback(trainer.engine.close)
    return trainer


def _synthetic(system: System, name: str, folder: Path, _: contextlib.ExitStack) -> Any:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

    workload = WORKLOADS[name]
    policy = make_policy(workload, folder / f"policy-{name.removesuffix('-half')}")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(policy)
    settings = {**workload.batches, "learning_rate": 1e-6, "beta": 0.0, "temperature": 1.0, "seed": 0}
    return _trainer_class(system)(
        str(policy),
        free_reward(workload),
        _arguments(system, settings, workload.context, folder),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in make_prompts(workload, tokenizer)]),
        processing_class=tokenizer,
        **_engine(system, str(policy), workload.context, settings),
    )


def _quickstart(system: System, _: str, folder: Path, stack: contextlib.ExitStack) -> Any:
    """examples/quickstart.yaml, but for `seeded_sampling`, which only Ascent has."""
    from ascent import config
    from ascent.models.folder import load_tokenizer, model_folder
    from ascent.rewards.base import RewardInputs
    from ascent.rewards.loading import load_rewards
    from ascent.sandbox import Sandbox
    from ascent.training.policy_tasks import run_tasks, to_dataset

    settings, _notes = config.load(ROOT / "examples" / "quickstart.yaml", [])
    policy = model_folder(settings.model.path)
    tokenizer = load_tokenizer(policy)
    longest = int(settings.trainer["max_completion_length"])
    tasks = run_tasks(settings.tasks, tokenizer, context=256, completion=longest, shown=0)
    rewards: Any = free_verdicts
    if not system.free:
        sandbox = stack.enter_context(Sandbox(slots=settings.sandbox.slots, limits=settings.sandbox.limits()))
        rewards = load_rewards(RewardInputs((*tasks.train, *tasks.held_out), settings.reward, sandbox, False))
    asked = {name: value for name, value in settings.trainer.items() if name != "seeded_sampling"}
    return _trainer_class(system)(
        str(policy),
        rewards,
        _arguments(system, asked, tasks.longest_prompt + longest, folder),
        train_dataset=to_dataset(tasks.train),
        processing_class=tokenizer,
        **_engine(system, str(policy), tasks.longest_prompt + longest, asked),
    )


def _engine(system: System, policy: str, context: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Ascent's engine with compiled graphs, as TRL's has them; by itself Ascent starts one without on CPU, which is
    there half a minute sooner and samples more slowly."""
    if system.trainer != "ascent" or not system.vllm:
        return {}
    from ascent.rollout.engine import EngineSettings

    at_once = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"]
    return {
        "engine": EngineSettings(
            policy, "float32", context, max_num_seqs=at_once, enforce_eager=False, kv_cache_bytes=2**29
        )
    }


def _arguments(system: System, settings: Mapping[str, Any], context: int, folder: Path) -> Any:
    made: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "max_steps": _MANY,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "optim": "adamw_torch",
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "model_init_kwargs": {"dtype": "float32", "device_map": None},
        **settings,
    }
    if system.vllm:
        made |= {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": context}
    if system.trainer == "trl":
        from trl.trainer.grpo_config import GRPOConfig as TRLConfig

        return TRLConfig(**made)
    from ascent import GRPOConfig

    known = {each.name for each in fields(GRPOConfig)}
    unknown = [name for name, _ in system.savings if name not in known]
    if unknown:
        raise SystemExit(f"this version of Ascent has no {', '.join(unknown)}")
    return GRPOConfig(**made, **dict(system.savings))


def _trainer_class(system: System) -> Any:
    if system.trainer == "trl":
        from trl.trainer.grpo_trainer import GRPOTrainer as TRLTrainer

        return TRLTrainer
    from ascent import GRPOTrainer

    return GRPOTrainer


def _keep_weights_as_they_are() -> None:
    """Without this vLLM packs float32 weights on CPU, and TRL's way of giving it new ones fails."""
    import vllm._custom_ops as ops

    vars(ops)["_supports_onednn"] = False
