"""Attention masks of packed rows, made on the device from the segments of their tokens."""

from __future__ import annotations

import torch

# the attention implementations of transformers that take a mask of four dimensions
TAKE_MASKS = ("sdpa", "eager")


def row_mask(segments_NW: torch.Tensor) -> torch.Tensor:
    """(N, 1, W, W), True where a token sees another: those of the prompt (segment 0) and of its own segment, up to
    itself. Padding sees the prompt, so that no row of the softmax is empty."""
    width = segments_NW.shape[1]
    place_W = torch.arange(width, device=segments_NW.device)
    causal_WW = place_W[:, None] >= place_W[None, :]
    keys_N1W, queries_NW1 = segments_NW[:, None, :], segments_NW[:, :, None]
    return (((keys_N1W == 0) | (keys_N1W == queries_NW1)) & causal_WW)[:, None]


def continuation_mask(segments_NW: torch.Tensor, prompt_lengths_N: torch.Tensor, prompt_width: int) -> torch.Tensor:
    """(N, 1, W, prompt_width + W), True where a completion's token sees its prompt or the completion up to itself."""
    rows, width = segments_NW.shape
    device = segments_NW.device
    prompt_NP = torch.arange(prompt_width, device=device) < prompt_lengths_N[:, None]
    place_W = torch.arange(width, device=device)
    causal_WW = place_W[:, None] >= place_W[None, :]
    seen_NWP = prompt_NP[:, None, :].expand(rows, width, prompt_width)
    return torch.cat([seen_NWP, causal_WW.expand(rows, width, width)], dim=2)[:, None]


def as_implementation_takes(mask: torch.Tensor, implementation: str, dtype: torch.dtype) -> torch.Tensor:
    """The mask as `sdpa` (boolean) or `eager` (added to the scores, in `dtype`) takes it."""
    if implementation == "sdpa":
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)
