"""Keys and values of prompts, computed once and handed to the completions that go on from them.

transformers' `DynamicCache` takes part in autograd: what is read from it leads the gradient back to the prompt.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicCache


def new_cache() -> DynamicCache:
    """An empty cache; each layer of it keeps all tokens, whatever the model's config says of windows."""
    return DynamicCache()


def expanded(cache: DynamicCache, rows_N: torch.Tensor) -> DynamicCache:
    """A cache of N rows, each the keys and values of row `rows_N` of `cache`."""
    layers: list[Any] = cache.layers
    return DynamicCache([(one.keys.index_select(0, rows_N), one.values.index_select(0, rows_N)) for one in layers])
