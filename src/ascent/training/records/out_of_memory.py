"""When memory runs out: what was asked for, what there is, and which settings need less."""

from __future__ import annotations

import contextlib
import shlex
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ascent import devices
from ascent.errors import InputError
from ascent.memory.advice import advice
from ascent.memory.cards import cards
from ascent.memory.measured import PLANNED
from ascent.memory.picture import size
from ascent.memory.plan import Plan
from ascent.rollout.engine import EngineError
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunDirectory

if TYPE_CHECKING:
    from ascent.config import RunConfig
    from ascent.training.arguments import GRPOConfig

_DOING = {
    "generate": "sampling",
    "logps": "computing log-probabilities",
    "sync": "moving weights into the engine",
    "update": "computing the loss and the update",
}


class OutOfMemoryError(InputError):
    """Memory ran out in one process of a run. The settings ask for more than there is, so the user can mend it."""


@contextlib.contextmanager
def explain_out_of_memory(
    config: RunConfig, args: GRPOConfig, run: RunDirectory, made: Plan | None, where: Callable[[], tuple[int, str]]
) -> Iterator[None]:
    """Turn an allocation that fails inside into OutOfMemoryError; its traceback is kept in the run directory.

    `made` is the run's plan, where it has one. `where()` gives the step, 0 before training, and the StepClock's phase.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        kept = run.failure(args.process_index)
        run_directory.write_text(kept, traceback.format_exc())
        step, phase = where()
        raise OutOfMemoryError(
            _what(error, args, step, phase),
            "\n  ".join((*_changes(config, args, run, made, phase), f"The traceback is kept in {kept}.")),
        ) from error


def _is_out_of_memory(error: BaseException) -> bool:
    import torch

    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return not isinstance(error, EngineError) and devices.says_out_of_memory(str(error))  # a server's is its own


def _what(error: BaseException, args: GRPOConfig, step: int, phase: str) -> str:
    used = devices.use()
    place = str(devices.current()) if devices.kind() != "cpu" else "the host"
    doing = _DOING.get(phase, "loading the model" if step == 0 else "training")
    said = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return (
        f"out of memory on {place} (process {args.process_index}) in step {step}, {doing}: {said[:300]}\n"
        f"  in use: {size(used.used_bytes)} of {size(used.total_bytes)}"
    )


def _changes(config: RunConfig, args: GRPOConfig, run: RunDirectory, made: Plan | None, phase: str) -> list[str]:
    """What to change: by the plan, with what it gains in the phases that it knows this one by, and what it doesn't
    know; without a plan, or where it sees nothing to gain, the settings by themselves."""
    if made is None or not (gains := advice(made, PLANNED.get(phase, ("start",)))):
        return _settings(config, args, phase)
    return [
        "What needs less memory here, by what the plan says it gains:",
        *(f"- {change.setting} (gains {size(change.gains)}): {change.costs}" for change in gains),
        *_of_sampling(config, args, phase),
        *_of_cache(config),
        f"`{_command(run, made)}` shows all phases, and with such settings added how much they would take.",
    ]


def _command(run: RunDirectory, made: Plan) -> str:
    words, trainers = ["ascent", "plan", str(run.path / "config.yaml")], made.settings.layout.trainers
    words += ["--device", made.card.name] if made.card.name in cards() else []
    words += ["--devices", str(trainers)] if trainers > 1 else []
    return shlex.join(words)


def _settings(config: RunConfig, args: GRPOConfig, phase: str) -> list[str]:
    """What to change, the cheapest first; each with what it is now."""
    batch, parts = args.per_device_train_batch_size, args.gradient_accumulation_steps
    with_vllm, samples = config.rollout.engine == "vllm", phase == "generate"
    shares_device = with_vllm and config.rollout.mode == "colocate" and devices.kind() != "cpu"
    found = ["What needs less memory, cheapest first:"]
    found += _of_sampling(config, args, phase)
    if not samples and isinstance(args.max_tokens_per_batch, int):
        tokens = args.max_tokens_per_batch
        found.append(f"- trainer.max_tokens_per_batch={max(1, tokens // 2)}, now {tokens}: the same step, more passes")
    elif batch > 1 and (with_vllm or not samples):
        found.append(
            f"- trainer.per_device_train_batch_size={batch // 2} trainer.gradient_accumulation_steps={parts * 2} "
            f"(now {batch} and {parts}): the same step in smaller parts"
        )
    if not args.gradient_checkpointing and not samples:
        found.append("- trainer.gradient_checkpointing=true: activations are computed again instead of kept")
    penalized = config.algorithm.name == "gpro"
    if penalized and not samples:
        found += _of_second_gradient(config.algorithm)
    found += _of_cache(config)
    if shares_device and config.memory.kv_cache_mb is None:
        found.append(f"- memory.engine_share, now {config.memory.engine_share}: what vLLM holds of this device")
    found.append(f"- trainer.max_completion_length, now {args.max_completion_length}")
    if config.model.lora is None and not samples:
        found.append("- model.lora.r=16: gradients and optimizer state of a small part of the weights only")
    if config.model.dtype != "bfloat16" and not penalized:  # half-precision weights have no second gradient
        found.append("- model.dtype=bfloat16: half the memory of weights, gradients and optimizer state, less precise")
    return found


def _of_sampling(config: RunConfig, args: GRPOConfig, phase: str) -> list[str]:
    """Of sampling by the trainer itself."""
    if phase != "generate" or config.rollout.engine == "vllm":
        return []
    batch = args.per_device_train_batch_size
    return [
        f"- trainer.per_device_train_batch_size, now {batch}: fewer completions are sampled at once",
        "- rollout.engine=vllm, which keeps keys and values in a cache of fixed size",
    ]


def _of_cache(config: RunConfig) -> list[str]:
    if config.memory.kv_cache_mb is None or config.rollout.engine != "vllm":
        return []
    return [f"- memory.kv_cache_mb, now {config.memory.kv_cache_mb}: vLLM's KV cache"]


def _of_second_gradient(algorithm: Any) -> list[str]:
    """GPRO keeps a copy of the weights that it moves, and the first gradient beside the second."""
    found = []
    if algorithm.gradient_penalty_fraction < 1.0:
        found.append(
            f"- algorithm.gradient_penalty_fraction=1, now {algorithm.gradient_penalty_fraction:g}: no third copy of "
            "the gradients"
        )
    if algorithm.gradient_penalty_radius == "auto":
        found.append(
            "- algorithm.gradient_penalty_radius=NUMBER: looking for it takes two more copies of the gradients"
        )
    if algorithm.gradient_penalty_parameters != "norms":
        found.append("- algorithm.gradient_penalty_parameters=norms: no copy of the other weights is kept")
    found.append("- algorithm=grpo: no second gradient, which takes a copy of the weights and one of the gradients")
    return found
