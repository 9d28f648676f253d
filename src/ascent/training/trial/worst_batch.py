"""The batch that takes most memory: every sequence as long as it may become, and all of them different.

It is made of the columns of a real batch, so that whatever the loss needs is there. Its tokens are random, its
advantages are 1 and -1 in turn: no row can be left out, none computed for another, and prompts are shared in a group
only. It goes through the trainer's own step; only what a step samples is put in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ascent.training.batches.rows import NEWEST, PLACE, Rows, SubBatch, count

_IDS = ("prompt_ids", "completion_ids")
_MASKS = ("prompt_mask", "completion_mask", "tool_mask")


def take_worst_batch(trainer: Any, prompt: int, completion: int) -> int:
    """Have the trainer make its next optimizer step on such a batch, of prompts with `prompt` tokens and completions
    with `completion`. Returns how many rows this process has in it."""
    micro_batches = worst_batch(
        trainer._buffered_inputs[0],
        prompt=prompt,
        completion=completion,
        micro_batches=int(trainer.args.gradient_accumulation_steps),
        group=int(trainer.num_generations or 1),
        vocabulary=int(trainer.model.config.get_text_config().vocab_size),
        processes=trainer.accelerator.num_processes,
    )

    def batches(epoch_iterator: Any, number: int, device: Any) -> tuple[list[SubBatch], None]:
        del trainer.get_batch_samples  # the instance's; the class has its own
        return micro_batches, None

    trainer.get_batch_samples = batches
    return sum(count(rows) for rows in micro_batches)


def worst_batch(
    like: Mapping[str, Any],
    *,
    prompt: int,
    completion: int,
    micro_batches: int,
    group: int,
    vocabulary: int,
    processes: int = 1,
) -> list[SubBatch]:
    """The micro-batches of one optimizer step of one process, each with the rows and columns of `like`, a micro-batch
    of TRL's. A prompt stands in `group` rows."""
    rows = int(like["completion_ids"].shape[0])
    device = like["completion_ids"].device
    all_rows = micro_batches * rows
    prompts_GP = torch.randint(vocabulary, (-(-all_rows // group), prompt), device=device)
    prompt_ids = prompts_GP.repeat_interleave(group, dim=0)[:all_rows]
    completion_ids = torch.randint(vocabulary, (all_rows, completion), device=device)
    found = []
    for first in range(0, all_rows, rows):
        places = slice(first, first + rows)
        batch: Rows = {name: stretched(name, value, rows, prompt, completion) for name, value in like.items()}
        batch["prompt_ids"], batch["completion_ids"] = prompt_ids[places], completion_ids[places]
        if PLACE in batch:
            batch[PLACE] = torch.arange(first, first + rows, device=device)
        batch["num_items_in_batch"] = _tokens_of_step(like, all_rows * completion * processes)
        found.append(SubBatch(batch, 1.0))
    return found


def stretched(name: str, value: Any, rows: int, prompt: int, completion: int) -> Any:
    """A column of a batch like that of `name`, for `rows` rows of full length; what isn't a column of rows, and ids,
    stay as they are."""
    if not isinstance(value, torch.Tensor) or not value.ndim or name in _IDS:
        return value
    columns = prompt if name.startswith("prompt_") else completion
    shape: Sequence[int] = (rows, columns if value.shape[-1] > 1 or name in _MASKS else 1)
    shape = shape if value.ndim == 2 else (rows, *value.shape[1:])
    if name in _MASKS:
        return torch.ones(shape, dtype=value.dtype, device=value.device)
    if name == "advantages":
        signs = torch.ones(shape, dtype=value.dtype, device=value.device)
        signs[1::2] = -1
        return signs
    if name == NEWEST:  # random tokens say nothing about the sampler
        return torch.zeros(shape, dtype=value.dtype, device=value.device)
    if name == "importance_sampling_ratio":
        return torch.ones(shape, dtype=value.dtype, device=value.device)
    return torch.full(shape, -1, dtype=value.dtype, device=value.device)  # log-probabilities


def _tokens_of_step(like: Mapping[str, Any], tokens: int) -> Any:
    given = like.get("num_items_in_batch")
    return torch.full_like(given, tokens) if isinstance(given, torch.Tensor) else given
