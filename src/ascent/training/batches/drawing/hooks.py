"""Where a generation's groups meet TRL's step: its rows, their completions, and rewards that they have got already."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from accelerate.utils import gather

from ascent.training.records.batch import BatchRecord
from ascent.types import Completion


def rows(trainer: Any, batch: BatchRecord, fetched: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that a batch of a GRPOTrainer is made of: what its dataloader `fetched`, or, with dynamic sampling,
    those of the groups that turned out to have signal, which are sampled and scored here. Collective."""
    batch.fetched = fetched
    if batch.evaluation is not None or trainer._refill is None:
        return fetched
    trainer._sampled_since_step = True
    batch.fill(trainer._refill.fill(batch.label, trainer.state.global_step))
    return list(batch.rows)


def sample(
    trainer: Any, batch: BatchRecord, prompt_ids: Sequence[Sequence[int]], num_generations: int
) -> list[Completion]:
    """The completions of a batch: those of its groups where they are there already, otherwise sampled now. With
    staleness the next generation is begun. Collective."""
    if batch.filled is None:
        batch.groups = trainer._groups(prompt_ids, batch.rows, num_generations, batch.label, **batch.place)
        batch.completions = trainer.sample(batch.groups)
    if batch.evaluation is None:
        batch.dropped = trainer._sampler.take_dropped()
        if trainer._looks_ahead:
            _sample_ahead(trainer, batch.fetched, num_generations)
    return batch.completions


def _sample_ahead(trainer: Any, fetched: Sequence[dict[str, Any]], num_generations: int) -> None:
    """Begin to sample the next generation of this epoch, if there is one to be trained on."""
    distance = trainer._generate_every - trainer._step % trainer._generate_every
    last = trainer.state.max_steps * trainer.args.gradient_accumulation_steps
    if trainer._lookahead is None or trainer._step + distance >= last:
        return
    following, label = trainer._lookahead.after(fetched, distance), str(trainer.generation + 1)
    if following is not None and trainer._refill is not None:
        trainer._refill.sample_ahead(label, trainer.state.global_step)
    elif following is not None:
        groups = trainer._groups(trainer._prompt_ids(following), following, num_generations, label)
        trainer._sampler.sample_ahead(groups)


def rewards(
    trainer: Any, batch: BatchRecord | None, completions: Sequence[Any], call: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """The rewards of all ranks' completions, (B, F), as TRL's `_calculate_rewards` gives them (`call`). Those that
    dynamic sampling took are handed out, and what the functions logged goes to the trainer. Those that aren't finite
    are NaN: not scored. Collective.

    `completions` are what TRL made of this rank's tokens: raises RuntimeError where they are not what was scored.
    """
    sources = trainer._numerics.sources
    if batch is None or batch.filled is None:
        # groups may be scored beside an evaluation
        alone = contextlib.nullcontext() if trainer._refill is None else trainer._refill.rewards_lock
        with alone, sources.listening(trainer):
            given_BF = call()
        first = trainer.accelerator.process_index * len(completions)
        given_BF = sources.of_models(given_BF, trainer.reward_funcs, slice(first, first + len(completions)))
        if batch is not None:
            batch.spoiled_rewards = sources.take()
        return given_BF
    filled, batch.spoiled_rewards = batch.filled, sources.take()
    if list(completions) != filled.answers():
        raise RuntimeError("what was scored for dynamic sampling is not what TRL makes of the same tokens")
    for column, values in filled.columns().items():
        trainer._log_completion_extra(column, values)
    for each in filled.chosen:
        for name, value in each.rewards.metrics:
            trainer._log_metric(name, value)
    trainer._reward_seconds += filled.seconds()
    rewards_BF: torch.Tensor = gather(filled.rewards().to(trainer.accelerator.device))
    return rewards_BF
