"""What a forward pass costs, from the model's config: so much a token, and so much a pair of tokens in attention.

In floating-point operations of one layer: 2 for each weight a token meets; 4 d for each query head and pair, d being
the width of a head (one product for the score, one for the value). Only ratios matter here. Attention runs less
efficiently than matrix products: `_CAUSAL`, `_MASKED` and `_PASS_TOKENS` were fitted to forward and backward passes of
a small Llama on a CPU, at widths from 32 to 2048 (`sdpa`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ascent.memory.model import Model

_CAUSAL = 0.65  # the causal kernel leaves out the pairs above the diagonal
_MASKED = 1.25  # a mask of its own: all pairs
_COPIED = 100.0  # what moving one number through memory costs, in operations
_PASS_TOKENS = 32  # what starting a forward pass costs, in tokens


@dataclass(frozen=True, slots=True)
class CostModel:
    """Operations a layer: `token` for each token, `pair` for each (query, key); `start` for each forward pass; `copy`
    for each token of a prompt whose keys and values are copied to one of its completions."""

    token: float
    pair: float
    start: float
    copy: float

    def causal(self, rows: int, width: int) -> float:
        """Plain rows, padded on the right."""
        return rows * (self.token * width + _CAUSAL * self.pair * width * width)

    def masked(self, rows: int, width: int, before: int = 0) -> float:
        """Rows with a mask of their own, after `before` tokens whose keys and values are known."""
        return rows * (self.token * width + _MASKED * self.pair * width * (width + before) + self.copy * before)


def cost_of(model: Model) -> CostModel:
    """The cost model of a model's dimensions."""
    experts = model.experts
    inner = model.intermediate if experts is None else experts.intermediate * experts.per_token
    return _of_sizes(model.hidden, model.heads, model.kv_heads, model.head_dim, inner)


def cost_model(config: Any) -> CostModel:
    """The cost model of a transformers config of a decoder."""
    hidden = config.hidden_size
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    inner = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    experts = getattr(config, "num_experts_per_tok", None) or 1
    return _of_sizes(hidden, heads, kv_heads, head_dim, inner * experts)


def _of_sizes(hidden: int, heads: int, kv_heads: int, head_dim: int, inner: int) -> CostModel:
    token = 2.0 * (hidden * head_dim * (2 * heads + 2 * kv_heads) + 3 * hidden * inner)
    return CostModel(
        token=token, pair=4.0 * heads * head_dim, start=_PASS_TOKENS * token, copy=8.0 * kv_heads * head_dim
    )
