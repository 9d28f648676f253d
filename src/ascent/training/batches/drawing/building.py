"""Dynamic sampling for a trainer: its settings checked, and its parts put together."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ascent import devices
from ascent.errors import InputError
from ascent.rollout.engine import EnginePlace
from ascent.training.arguments import own_setting
from ascent.training.batches.drawing.answers import answers_for
from ascent.training.batches.drawing.prompts import PromptOrder
from ascent.training.batches.drawing.refill import Refill, RefillSettings
from ascent.training.batches.drawing.reward_calls import RewardCalls
from ascent.training.batches.drawing.round import Judging
from ascent.training.batches.drawing.scored_group import Signal
from ascent.training.sampling_settings import completion_seed
from ascent.training.step.groups import LocalGroup, whole_groups
from ascent.training.step.sampler import print_on_stderr

_FIELDS = {"max_surplus_age": 0, "curriculum": False}  # which mean nothing without max_resample_factor


def refill_for(trainer: Any) -> Refill | None:
    """What fills the generations of a trainer whose sampler is set up; None where its settings don't ask for it. Raises
    InputError for those that can't be had."""
    args = trainer.args
    if not wants_refill(args):
        return None
    settings = _settings(trainer)
    rows = _rows(trainer)
    _check_parts(trainer, settings)
    ranks = trainer.agreement.ranks
    shuffle = bool(trainer.shuffle_dataset)
    calls = RewardCalls(trainer)
    judging = Judging(
        trainer.reward_funcs,
        calls,
        functools.partial(devices.use_in_thread, trainer.accelerator.device),
        answers_for(copy.deepcopy(trainer._tokenizer)),
        Signal(trainer.reward_weights.cpu(), trainer.multi_objective_aggregation == "normalize_then_sum"),
        in_batches=trainer.engine.place is EnginePlace.TRAINERS_MODEL,
        exposed=lambda: trainer._clock.phase("reward_exposed"),
    )
    return Refill(
        settings,
        PromptOrder(len(rows), rank=ranks.rank, ranks=ranks.count, seed=args.seed, shuffle=shuffle),
        _Rows(trainer, rows),
        judging,
        trainer._sampler,
        ranks,
        calls.lock,
        print_on_stderr if ranks.rank == 0 else lambda text: None,
        trainer.tell_alarm,
    )


def wants_refill(args: Any) -> bool:
    """Whether a GRPOConfig, or TRL's, asks for it. Raises InputError for settings that contradict themselves."""
    factor = own_setting(args, "max_resample_factor")
    if not factor >= 1:
        raise InputError(
            f"max_resample_factor={factor}: should be at least 1: how many times the samples of a generation may be "
            "drawn for it",
            "1 draws nothing again; DAPO's runs need 2 to 3.",
        )
    if factor > 1:
        return True
    for name, usual in _FIELDS.items():
        if (value := own_setting(args, name)) != usual:
            raise InputError(
                f"{name}={value!r} has no meaning without dynamic sampling",
                "Set max_resample_factor above 1, or leave it out.",
            )
    return False


def _settings(trainer: Any) -> RefillSettings:
    args, each = trainer.args, trainer.num_generations
    rows = args.per_device_train_batch_size * (args.steps_per_generation or 1)
    if rows % each:
        raise InputError(
            f"max_resample_factor={args.max_resample_factor}: a process samples {rows} completions of a generation "
            f"(per_device_train_batch_size x steps_per_generation), which are not whole groups of {each}, and a group "
            "that is spread over processes can't be replaced by one of them",
            f"Make it a multiple of num_generations={each}.",
        )
    needed = rows // each
    most = int(args.max_resample_factor * needed)
    if most == needed:
        raise InputError(
            f"max_resample_factor={args.max_resample_factor}: no group could be replaced, for a process samples "
            f"{needed} of a generation, and {args.max_resample_factor} times that is less than one more",
            f"Set it to {(needed + 1) / needed:.2f} or more, or sample more groups at once (steps_per_generation).",
        )
    if args.max_surplus_age < 0:
        raise InputError(f"max_surplus_age={args.max_surplus_age}: should be 0 or more (optimizer steps)")
    if args.max_surplus_age and not (trainer.use_vllm and trainer.vllm_importance_sampling_correction):
        raise InputError(
            f"max_surplus_age={args.max_surplus_age}: groups of older weights need the correction by the sampler's own "
            "log-probabilities, which this training doesn't have",
            "Sample with vLLM and vllm_importance_sampling_correction=True, or leave max_surplus_age at 0.",
        )
    return RefillSettings(needed, most, args.max_surplus_age, args.curriculum, args.seed)


def _rows(trainer: Any) -> Any:
    rows = trainer.train_dataset
    if not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")) or len(rows) == 0:
        raise InputError(
            f"max_resample_factor={trainer.args.max_resample_factor}: prompts are drawn by their number, which the "
            f"dataset ({type(rows).__name__}) doesn't allow",
            "Give a dataset with a length (datasets.Dataset) that has rows.",
        )
    if hasattr(rows, "column_names"):
        rows = trainer._remove_unused_columns(rows, description="Training")
    if pictures := {"image", "images"} & set(rows[0]):
        raise InputError(
            f"max_resample_factor: the dataset has {', '.join(pictures)}, which Ascent's engine can't take"
        )
    return rows


def _check_parts(trainer: Any, settings: RefillSettings) -> None:
    several = trainer.accelerator.num_processes > 1
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    models = [name for name, function in _functions(trainer) if isinstance(function, torch.nn.Module)]
    if several and sharded and trainer.engine.place is EnginePlace.TRAINERS_MODEL:
        raise InputError(
            "max_resample_factor: with a model that is cut over several processes all of them sample at once, but each "
            "draws as many groups as it needs",
            "Sample with vLLM.",
        )
    if several and trainer.is_deepspeed_enabled and models:
        raise InputError(
            f"max_resample_factor: {', '.join(models)} would be called by each process alone, which DeepSpeed doesn't "
            "allow",
            "Train without DeepSpeed, or with reward functions that are no models.",
        )


def _functions(trainer: Any) -> list[tuple[str, Any]]:
    return list(zip(trainer.reward_func_names, trainer.reward_funcs, strict=True))


class _Rows:
    """A dataset as `Prompts`."""

    def __init__(self, trainer: Any, rows: Any) -> None:
        self._trainer, self._rows = trainer, rows

    def task_of(self, index: int) -> str:
        return str(self._rows[index].get("task_id", index))

    def groups(self, indices: Sequence[int], label: str) -> list[LocalGroup]:
        trainer, ranks = self._trainer, self._trainer.agreement.ranks
        rows: list[Mapping[str, Any]] = [self._rows[index] for index in indices]
        return whole_groups(
            trainer._prompt_ids(rows),
            trainer.num_generations,
            trainer.sampling(),
            label=label,
            rank=ranks.rank,
            ranks=ranks.count,
            seed=completion_seed(trainer),
            rows=rows,
        )
