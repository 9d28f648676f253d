"""Rows of TRL's batches, each a dict of tensors: joined, taken by number, cut to the columns that they need.

TRL's prompts are padded on the left, completions on the right; a sub-batch needs no more columns than its longest row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ascent.training.batches.passes.equal_rows import distinct_rows, kinds
from ascent.training.batches.passes.sequences import read_sequences, to_host

Rows = dict[str, Any]  # TRL's name -> tensor of B rows, scalar tensor, or None

PLACE = "row_place"  # ours, (B,) int64: a row's place in its generation, over all ranks
NEWEST = "newest_weights"  # ours, (B,) bool: sampled with the weights that are being trained
_PROMPT = ("prompt_ids", "prompt_mask")
_COMPLETION = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
    "advantages",
)
_KNOWN = {*_PROMPT, *_COMPLETION, PLACE, NEWEST, "num_items_in_batch"}


@dataclass(frozen=True, slots=True)
class Length:
    """The tokens of one row, without padding. Rows with the same `prompt` have the same prompt, and those with the same
    `completion` too are equal."""

    prompt: int
    completion: int
    prompt_tokens: int
    completion_tokens: int

    @property
    def tokens(self) -> int:
        """Of both."""
        return self.prompt_tokens + self.completion_tokens


class SubBatch(dict[str, Any]):
    """Rows for one forward and backward pass. `weight` times TRL's loss of them is their part of the step's loss. A
    `filling` is no row of the step: it keeps ranks together."""

    def __init__(self, rows: Rows, weight: float, *, filling: bool = False) -> None:
        super().__init__(rows)
        self.weight, self.filling = weight, filling


def unknown(rows: Rows) -> list[str]:
    """What a batch holds that nobody here can cut by rows, such as pixels."""
    return sorted(name for name, value in rows.items() if value is not None and name not in _KNOWN)


def count(rows: Rows) -> int:
    """How many rows there are."""
    return int(rows["completion_ids"].shape[0])


def join(slices: Sequence[Rows]) -> Rows:
    """All rows of slices of one generation, which are padded alike."""
    if len(slices) == 1:
        return slices[0]
    first = slices[0]
    return {
        name: torch.cat([each[name] for each in slices]) if isinstance(value, Tensor) and value.ndim else value
        for name, value in first.items()
    }


def take(rows: Rows, places: Sequence[int]) -> Rows:
    """Some of the rows, with all columns."""
    index = torch.tensor(places, dtype=torch.long, device=rows["completion_ids"].device)
    return {
        name: value.index_select(0, index) if isinstance(value, Tensor) and value.ndim else value
        for name, value in rows.items()
    }


def cut(rows: Rows, prompt_columns: int, completion_columns: int) -> Rows:
    """Rows with the last columns of their prompts and the first ones of their completions; at least one of each."""
    prompt_columns, completion_columns = max(prompt_columns, 1), max(completion_columns, 1)
    cut_rows = dict(rows)
    for name in _PROMPT:
        cut_rows[name] = rows[name][:, -prompt_columns:]
    for name in _COMPLETION:
        value = rows.get(name)
        if isinstance(value, Tensor) and value.ndim == 2 and value.shape[1] > 1:  # (B, 1): one value for all columns
            cut_rows[name] = value[:, :completion_columns]
    return cut_rows


def without_effect(rows: Rows) -> list[int]:
    """The places of rows that can't move the policy: their advantage is 0, or no token of theirs is in the loss.

    So it is where nothing but the advantage pulls at a row: no KL term, no entropy bonus.
    """
    advantages = rows["advantages"]
    still = advantages.eq(0).reshape(len(advantages), -1).all(dim=1) | rows["completion_mask"].eq(0).all(dim=1)
    return [place for place, is_still in enumerate(still.tolist()) if is_still]


def lengths(rows: Rows) -> list[Length] | None:
    """The lengths of all rows; equal prompts and completions are found. One transfer from the device. None where the
    masks aren't what TRL makes of prompts and completions."""
    ids_BT = torch.cat([rows["prompt_ids"], rows["completion_ids"]], dim=1)
    mask_BT = torch.cat([rows["prompt_mask"], rows["completion_mask"]], dim=1)
    sequences = read_sequences(to_host(ids_BT, mask_BT), rows["completion_ids"].shape[1])
    if sequences is None:
        return None
    prompts, completions = kinds(sequences.prompts), distinct_rows(sequences).kind_B
    return [
        Length(int(prompt), int(completion), len(sequences.prompts[row]), len(sequences.completions[row]))
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
    ]


def filling(rows: Rows) -> SubBatch:
    """A row that adds nothing to a loss: for the passes of a rank that has less to do than another."""
    row = cut(take(rows, [0]), 1, 1)
    row["prompt_mask"] = torch.ones_like(row["prompt_mask"])
    row["completion_mask"] = torch.zeros_like(row["completion_mask"])
    row["advantages"] = torch.zeros_like(row["advantages"])
    return SubBatch(row, 0.0, filling=True)


def tokens_in_loss(rows: Rows) -> float:
    """How many tokens the loss is of."""
    return float(loss_mask(rows).sum())


def loss_mask(rows: Rows) -> Tensor:
    """(B, C): which tokens the loss is of."""
    mask_BC: Tensor = rows["completion_mask"]
    tool_mask_BC = rows.get("tool_mask")
    return mask_BC if tool_mask_BC is None else mask_BC * tool_mask_BC


def gathered(rows: Rows, accelerator: Any) -> Rows:
    """The rows of all ranks, in the order of their ranks, padded alike. Collective."""
    found: Rows = {}
    for name in sorted(rows):
        value = rows[name]
        if not isinstance(value, Tensor) or not value.ndim:
            found[name] = value
            continue
        if value.ndim > 1:
            value = accelerator.pad_across_processes(value, dim=1, pad_first=name in _PROMPT)
        found[name] = accelerator.gather(value.contiguous())
    return found
