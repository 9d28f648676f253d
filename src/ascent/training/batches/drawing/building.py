"""Dynamic sampling and over-sampling for a trainer: its parts put together, and what they can't be had with."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ascent import devices
from ascent.errors import InputError
from ascent.rollout.engine import EnginePlace
from ascent.training.batches.drawing.answers import answers_for
from ascent.training.batches.drawing.prompts import PromptOrder
from ascent.training.batches.drawing.refill import Refill
from ascent.training.batches.drawing.reward_calls import RewardCalls
from ascent.training.batches.drawing.round import Judging
from ascent.training.batches.drawing.scored_group import Signal
from ascent.training.batches.drawing.settings import check_parts_can_be_sampled, drawing_asked_for, refill_settings
from ascent.training.sampling_settings import completion_seed
from ascent.training.step.groups import LocalGroup, whole_groups
from ascent.training.step.sampler import print_on_stderr


def refill_for(trainer: Any) -> Refill | None:
    """What fills the generations of a trainer whose sampler is set up; None where its settings don't ask for it. Raises
    InputError for those that can't be had."""
    args = trainer.args
    asked = drawing_asked_for(args)
    if not asked:
        return None
    settings = refill_settings(trainer)
    rows = _rows(trainer, asked[0])
    _check_parts(trainer, asked[0])
    if settings.closing is not None:
        check_parts_can_be_sampled(trainer)
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


def _rows(trainer: Any, asked: str) -> Any:
    rows = trainer.train_dataset
    if not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")) or len(rows) == 0:
        raise InputError(
            f"{asked}: prompts are drawn by their number, which the dataset ({type(rows).__name__}) doesn't allow",
            "Give a dataset with a length (datasets.Dataset) that has rows.",
        )
    if hasattr(rows, "column_names"):
        rows = trainer._remove_unused_columns(rows, description="Training")
    if pictures := {"image", "images"} & set(rows[0]):
        raise InputError(f"{asked}: the dataset has {', '.join(pictures)}, which Ascent's engine can't take")
    return rows


def _check_parts(trainer: Any, asked: str) -> None:
    several = trainer.accelerator.num_processes > 1
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    models = [name for name, function in _functions(trainer) if isinstance(function, torch.nn.Module)]
    if several and sharded and trainer.engine.place is EnginePlace.TRAINERS_MODEL:
        raise InputError(
            f"{asked}: with a model that is cut over several processes all of them sample at once, but each "
            "draws as many groups as it needs",
            "Sample with vLLM.",
        )
    if several and trainer.is_deepspeed_enabled and models:
        raise InputError(
            f"{asked}: {', '.join(models)} would be called by each process alone, which DeepSpeed doesn't allow",
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
