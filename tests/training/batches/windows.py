"""A trainer is driven through its own `train`, and tells what each optimizer step was made of."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.training.batches.ragged_batches import Generation, LogProbs, to
from torch import Tensor

from ascent import devices
from ascent.types import Completion, EngineStats

# The metrics of TRL's loss, and of its correction against the sampler; the others are of what was sampled.
_OF_LOSS = ("entropy", "kl", "clip_ratio/", "cispo_clip_ratio", "vespo/", "policy_loss", "aux_loss", "sampling/")
ALL_SAVINGS: dict[str, Any] = {
    "max_tokens_per_batch": 64,
    "shared_prompt": "auto",
    "skip_zero_advantage": True,
    "reuse_equal_rows": True,
    "skip_old_logps": True,
    "balance_ranks": True,
}


@dataclass(frozen=True, slots=True)
class Window:
    """One optimizer step: the gradient of all parameters in one row, float32 on the host, before clipping; the loss,
    summed over micro-batches; and what was logged."""

    gradient: Tensor
    loss: float
    logs: dict[str, Any]

    @property
    def metrics(self) -> dict[str, float]:
        """What was logged of the loss."""
        return {name: value for name, value in self.logs.items() if name.startswith(_OF_LOSS)}

    @property
    def computed(self) -> float:
        """The share of rows that its metrics are of."""
        return float(self.logs.get("batch/computed_rows", 1.0))


class SilentEngine:
    """An engine in the trainer's process that is never asked for anything: completions come from elsewhere."""

    dtype = "float32"

    def __init__(self) -> None:
        from ascent.rollout.engine import EnginePlace

        self.place = EnginePlace.TRAINERS_PROCESS

    def stats(self) -> EngineStats:
        return EngineStats()

    def close(self) -> None: ...

    def poll(self) -> list[Completion]:
        raise AssertionError("the engine is used")


def arguments(output: Path, **settings: Any) -> dict[str, Any]:
    """GRPOConfig's, for a training of one epoch by plain gradient descent without clipping, so that a rounding in one
    step stays one in the next."""
    return {
        "output_dir": str(output),
        "num_generations": 4,
        "max_completion_length": 12,
        "num_train_epochs": 1,
        "learning_rate": 0.01,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "bf16": False,
        "use_cpu": devices.kind() == "cpu",
        "report_to": "none",
        "save_strategy": "no",
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "beta": 0.0,
        **settings,
    }


def stock_trainer(policy: Path, settings: dict[str, Any], *, prompts: int, reward: Any = None, **keywords: Any) -> Any:
    """TRL's own trainer. With `use_vllm` it has no engine."""
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from ascent.training.trl_path import without_engine

    torch.manual_seed(1)  # for adapters
    keywords["processing_class"] = tokenizer(policy)
    with without_engine():
        return GRPOTrainer(
            str(policy), reward or _no_reward, GRPOConfig(**settings), train_dataset=_rows(prompts), **keywords
        )


def our_trainer(policy: Path, settings: dict[str, Any], *, prompts: int, reward: Any = None, **keywords: Any) -> Any:
    """Ascent's trainer. With `use_vllm` it has an engine that is never used, unless another is given."""
    from ascent import GRPOConfig, GRPOTrainer

    if settings.get("use_vllm"):
        keywords = {"engine": SilentEngine(), **keywords}
    keywords["processing_class"] = tokenizer(policy)
    torch.manual_seed(1)
    return GRPOTrainer(
        str(policy),
        reward or _no_reward,
        GRPOConfig(**settings),
        train_dataset=_rows(prompts),
        verify=False,
        **keywords,
    )


def drive(trainer: Any, generations: Sequence[Generation] | None) -> list[Window]:
    """Train to the end on these generations, in place of sampled ones; what each optimizer step was made of.

    The rows of a generation are shuffled by TRL, here alike for all trainers. None: the trainer samples by itself.
    """
    numbers = itertools.count()
    own = trainer._generate_and_score_completions

    def generate(rows: Any) -> Generation:
        number = next(numbers)
        made = own(rows) if generations is None else to(generations[number], trainer.accelerator.device)
        torch.manual_seed(number)  # of the shuffle that follows
        return made

    trainer._generate_and_score_completions = generate
    step = trainer.training_step
    losses: list[Tensor] = []

    def training_step(*args: Any, **keywords: Any) -> Tensor:
        losses.append(step(*args, **keywords))
        return losses[-1]

    trainer.training_step = training_step
    watcher = _watcher(losses)
    trainer.add_callback(watcher)
    trainer.train()
    return watcher.windows


def policy_logps(policy: Path) -> LogProbs:
    """The log-probabilities that the policy itself gives."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy)

    @torch.no_grad()
    def logps(ids: Tensor, mask: Tensor, columns: int) -> Tensor:
        logits = model(input_ids=ids, attention_mask=mask).logits[:, -columns - 1 : -1]
        return torch.log_softmax(logits, -1).gather(-1, ids[:, -columns:, None]).squeeze(-1)

    return logps


def _watcher(losses: list[Tensor]) -> Any:
    from transformers import TrainerCallback

    class Watcher(TrainerCallback):
        """Takes the gradients before the optimizer does, and what is logged after."""

        def __init__(self) -> None:
            self.windows: list[Window] = []
            self._gradient = torch.zeros(0)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            self._gradient = flat_gradient(model)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if "train_loss" not in logs:
                loss = sum(float(loss) for loss in losses)
                self.windows.append(Window(self._gradient, loss, dict(logs)))
                losses.clear()

    return Watcher()


def flat_gradient(model: Any) -> Tensor:
    """The gradients of all trained parameters, in the order of their names; a missing one is zero. Collective where the
    model is sharded."""
    with _gathered(model):
        parts = []
        for name, parameter in sorted(_named(model)):
            if parameter.requires_grad:
                gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
                whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
                assert not whole.isnan().any(), name
                parts.append(whole.detach().float().cpu().flatten())
        return torch.cat(parts)


def _gathered(model: Any) -> contextlib.AbstractContextManager[None]:
    """Inside, a model of FSDP 1 has whole parameters and gradients in the place of its flat ones."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    if isinstance(model, FullyShardedDataParallel):
        return FullyShardedDataParallel.summon_full_params(model, with_grads=True)
    return contextlib.nullcontext()


def _named(model: Any) -> list[tuple[str, Any]]:
    return [(name.replace("_fsdp_wrapped_module.", ""), each) for name, each in model.named_parameters()]


def relative_error(mine: Tensor, theirs: Tensor) -> float:
    """The length of the difference by the length of `theirs`."""
    return float((mine.double() - theirs.double()).norm() / theirs.double().norm().clamp(min=1e-30))


def tokenizer(policy: Path) -> Any:
    """The policy's tokenizer; by its class, for some models have none of their own."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(policy)


def _rows(prompts: int) -> Any:
    from datasets import Dataset

    return Dataset.from_list([{"prompt": f"def f{number}(a):"} for number in range(prompts)])


def _no_reward(completions: Sequence[str], **_: Any) -> list[float | None]:
    return [0.0] * len(completions)
