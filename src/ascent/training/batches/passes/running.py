"""Packed passes, run: the backbone's hidden states at the scored positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache

from ascent.training.batches.passes.masks import as_implementation_takes, continuation_mask, row_mask
from ascent.training.batches.passes.packing import PackedCache, PackedContinuations, PackedPass
from ascent.training.batches.passes.prompt_cache import continued, new_cache


@dataclass(frozen=True, slots=True)
class Backbone:
    """A decoder's forward pass; which attention it has, and the type that an added mask must be of."""

    forward: Callable[..., Any]
    attention: str
    dtype: torch.dtype

    def hidden_states(self, packed: Sequence[PackedPass | PackedCache]) -> torch.Tensor:
        """(M, H): at the scored positions of all passes, in their order (`scored_of`)."""
        found = []
        for one in packed:
            found += [self._rows(one)] if isinstance(one, PackedPass) else self._cached(one)
        return torch.cat(found)

    def _rows(self, inputs: PackedPass, cache: Cache | None = None) -> torch.Tensor:
        mask = None
        if inputs.segments_NW is not None:
            mask = self._takes(row_mask(inputs.segments_NW))
        return self._run(inputs, mask, cache)

    def _cached(self, packed: PackedCache) -> list[torch.Tensor]:
        cache = new_cache()
        found = [self._rows(packed.prompts, cache)]
        return found + [self._continuation(packed, part, cache) for part in packed.continuations]

    def _continuation(self, packed: PackedCache, part: PackedContinuations, cache: DynamicCache) -> torch.Tensor:
        segments_NW, prompts_N = part.inputs.segments_NW, part.prompts_N
        assert segments_NW is not None
        lengths_N = packed.lengths_n.index_select(0, prompts_N)
        mask = continuation_mask(segments_NW, lengths_N, packed.prompts.ids_NW.shape[1])
        return self._run(part.inputs, self._takes(mask), continued(cache, prompts_N))

    def _run(self, inputs: PackedPass, mask: torch.Tensor | None, cache: Cache | None) -> torch.Tensor:
        output = self.forward(
            input_ids=inputs.ids_NW,
            attention_mask=mask,
            position_ids=inputs.positions_NW,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        return output.last_hidden_state.flatten(0, 1).index_select(0, inputs.places_M)

    def _takes(self, mask: torch.Tensor) -> torch.Tensor:
        return as_implementation_takes(mask, self.attention, self.dtype)
