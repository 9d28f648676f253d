"""The sequences in TRL's padded tensors: prompts padded on the left, completions on the right.

They are read on the host, since the layout of a forward pass is decided there: one transfer for a call, or none where
the caller has the tensors' host copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HostBatch:
    """Host copies of `input_ids` and `attention_mask`, both of shape (B, P + C)."""

    ids_BT: NDArray[np.int64]
    mask_BT: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Sequences:
    """B prompts and completions without padding; a completion may be empty, a prompt is not.

    `width` is C, the columns of the completions' padded tensor; `padded_tokens` is B (P + C).
    """

    prompts: tuple[Tokens, ...]
    completions: tuple[Tokens, ...]
    width: int
    padded_tokens: int


def to_host(input_ids_BT: torch.Tensor, attention_mask_BT: torch.Tensor) -> HostBatch:
    """Both tensors on the host, in one transfer."""
    import torch

    both = torch.stack([input_ids_BT, attention_mask_BT.to(input_ids_BT.dtype)]).cpu().numpy()
    return HostBatch(both[0], both[1].astype(np.bool_))


def read_sequences(batch: HostBatch, width: int) -> Sequences | None:
    """The sequences of a batch whose last `width` columns hold completions.

    None where the masks aren't what TRL makes of prompts and completions: a hole in a row, padding on the other side,
    a prompt without a token.
    """
    rows, columns = batch.ids_BT.shape
    prompt_width = columns - width
    prompt_mask_BP, completion_mask_BC = batch.mask_BT[:, :prompt_width], batch.mask_BT[:, prompt_width:]
    prompt_lengths_B, completion_lengths_B = prompt_mask_BP.sum(1), completion_mask_BC.sum(1)
    padded_B = prompt_width - prompt_lengths_B
    regular = (
        (prompt_lengths_B > 0).all()
        and (prompt_mask_BP == (np.arange(prompt_width) >= padded_B[:, None])).all()
        and (completion_mask_BC == (np.arange(width) < completion_lengths_B[:, None])).all()
    )
    if not regular:
        return None
    prompts = tuple(batch.ids_BT[row, padded_B[row] : prompt_width] for row in range(rows))
    completions = tuple(
        batch.ids_BT[row, prompt_width : prompt_width + completion_lengths_B[row]] for row in range(rows)
    )
    return Sequences(prompts, completions, width, rows * columns)
