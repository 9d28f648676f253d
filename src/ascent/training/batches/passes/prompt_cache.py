"""Keys and values of prompts, computed once and handed to the completions that go on from them.

transformers' caches take part in autograd: what is read from them leads the gradient back to the prompt.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer


def new_cache() -> DynamicCache:
    """An empty cache; each layer of it keeps all tokens, whatever the model's config says of windows."""
    return DynamicCache()


def continued(cache: DynamicCache, rows_N: torch.Tensor) -> Cache:
    """A cache for N rows, of which each goes on from row `rows_N` of `cache`. It keeps nothing of what comes after."""
    return Cache(layers=[_Continued(layer, rows_N) for layer in cache.layers])


class _Continued(DynamicLayer):
    """One layer's keys and values (n, heads, P, head width) of the prompts; copied to the rows only for attention."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, prompts: Any, rows_N: torch.Tensor) -> None:
        super().__init__()
        self.dtype, self.device, self.is_initialized = prompts.dtype, prompts.device, True
        self.keys, self.values, self._rows_N = prompts.keys, prompts.values, rows_N

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        keys, values = self.keys.index_select(0, self._rows_N), self.values.index_select(0, self._rows_N)
        return torch.cat([keys, key_states], dim=-2), torch.cat([values, value_states], dim=-2)
