"""Without padding: all sequences of a sub-batch in one row, whose boundaries the attention is told.

What TRL computes of (sequences, longest length) tokens is computed of as many tokens as there are: flash attention's
`varlen` functions keep a row's sequences apart by their cumulative lengths. Which models can,
`padding_free_support.py` says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor

from ascent.compat.npu_flash_attention import where_boundaries_belong
from ascent.errors import InputError


@dataclass(frozen=True, slots=True)
class PackedRow:
    """The tokens of a padded batch in one row (T tokens, N of them scored), sequence after sequence.

    `source_N` are the places in the row whose hidden state predicts a scored token, `target_N` these tokens' places in
    the flattened (B, C) result, `label_N` their ids.
    """

    ids_1T: Tensor
    positions_1T: Tensor
    boundaries: Tensor  # int32, cumulative lengths from 0 on, where the attention reads them
    longest: int
    source_N: Tensor
    label_N: Tensor
    target_N: Tensor


class PaddingFreeForward:
    """TRL's per-token log-probabilities, computed of one row without padding."""

    def __init__(self, autocast: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext) -> None:
        """`autocast` is what TRL computes log-probabilities in (`accelerator.autocast`)."""
        self._autocast = autocast

    def logps(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, compute_entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """As TRL's `_get_per_token_logps_and_entropies`: log-probabilities (B, C) of the last C = `logits_to_keep`
        columns of `input_ids` (B, L), and entropies (B, C) if asked for; 0 where `attention_mask` (B, L) is 0.

        `model` has TRL's fused head, and may be wrapped. The head computes the scored tokens only. One wait for the
        device a call. Raises InputError for a sequence whose first scored token has nothing before it, and for a batch
        without tokens.
        """
        row = pack(input_ids, attention_mask, logits_to_keep)
        boundaries = {"cu_seq_lens_q": row.boundaries, "cu_seq_lens_k": row.boundaries}
        with _only_places(model, row.source_N), self._autocast():
            outputs = model(
                input_ids=row.ids_1T,
                position_ids=row.positions_1T,
                **boundaries,
                max_length_q=row.longest,
                max_length_k=row.longest,
                shift_labels=row.label_N[None],
                fused_lm_head=True,
            )
        shape = (len(input_ids), logits_to_keep)
        logps_BC = _unpack(outputs.log_probs, row.target_N, shape)
        return logps_BC, _unpack(outputs.entropy, row.target_N, shape) if compute_entropy else None


def pack(input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int) -> PackedRow:
    """The row of a padded batch (B, L): prompts padded on the left, completions, of `logits_to_keep` columns, on the
    right. A batch in which nothing is scored gets one place with no label, so that it has a gradient, of zeros."""
    device = input_ids.device
    kept_BL = attention_mask.cpu().bool()  # the one wait: all places are found on the host
    length_B = kept_BL.sum(1)
    if not int(length_B.sum()):
        raise InputError("a batch without any token: its attention mask is 0 everywhere")
    row_T, column_T = kept_BL.nonzero(as_tuple=True)
    position_T = (kept_BL.cumsum(1) - 1)[kept_BL]
    first = kept_BL.shape[1] - logits_to_keep  # column that is scored
    scored_T = column_T >= first
    if bool((position_T[scored_T] == 0).any()):
        raise InputError(
            "a sequence without a prompt: its first token has nothing before it that predicts it",
            "Leave empty prompts out of the dataset, or use a tokenizer that begins a text with a token.",
        )
    place_N = scored_T.nonzero().flatten()
    target_N = row_T[place_N] * logits_to_keep + column_T[place_N] - first
    ids_T = input_ids[row_T.to(device), column_T.to(device)]
    label_N = ids_T[place_N.to(device)]
    if not len(place_N):
        place_N, target_N = torch.ones(1, dtype=torch.long), torch.zeros(1, dtype=torch.long)
        label_N = ids_T.new_full((1,), -100)
    boundaries = torch.nn.functional.pad(length_B[length_B > 0].cumsum(0), (1, 0)).int()
    return PackedRow(
        ids_T[None],
        position_T[None].to(device),
        boundaries.to(where_boundaries_belong(device)),
        int(length_B.max()),
        (place_N - 1).to(device),
        label_N,
        target_N.to(device),
    )


@contextlib.contextmanager
def _only_places(model: Any, source_N: Tensor) -> Iterator[None]:
    """While inside, the backbone of `model` gives its hidden states at these places only, so that the head computes no
    others."""

    def select(_module: Any, _inputs: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[:, source_N.to(output.last_hidden_state.device)]
        return output

    handle = causal_model(model).base_model.register_forward_hook(select)
    try:
        yield
    finally:
        handle.remove()


def causal_model(model: Any) -> Any:
    """transformers' model with the head, out of what wraps it: accelerate's and PEFT's."""
    inner = extract_model_from_parallel(model)
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def _unpack(value_1N: Tensor, target_N: Tensor, shape: tuple[int, int]) -> Tensor:
    return value_1N.new_zeros(shape[0] * shape[1]).scatter(0, target_N, value_1N[0]).view(shape)
