"""`torch_npu.npu_fusion_attention` in reference arithmetic: scores and softmax in float32, differentiable.

Layouts BSND, BNSD and TND, an attention mask (True hides), causal masks by `sparse_mode`, fewer key heads than query
heads. What else the real operator takes is refused rather than ignored. A row that may see no key gives zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

ALL = 2147483647
DEFAULT_MASK, ALL_MASK, LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL = range(4)
COMPRESSED_MASK = (2048, 2048)

Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]


def npu_fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
    dropout_mask: torch.Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> Result:
    """(attention, softmax maximum, softmax sum, empty, seed, offset, numels) as the real operator's.

    `attention` has the query's layout. Maximum and sum are float32 of (B, N, S, 8), or (T, N, 8) for TND, each value
    eight times. `actual_seq_qlen` and `actual_seq_kvlen` are the cumulative lengths of TND's sequences, without the
    leading 0. Raises NotImplementedError for options that the reference arithmetic lacks, RuntimeError for wrong shapes
    and for tensors on other devices.
    """
    others = {"pse": pse, "padding_mask": padding_mask, "prefix": prefix, "sink": sink, "dropout_mask": dropout_mask}
    given = [name for name, argument in others.items() if argument is not None]
    if sparse_mode not in range(4):
        given.append(f"sparse_mode={sparse_mode}")
    if sparse_mode == DEFAULT_MASK and (pre_tockens, next_tockens) != (ALL, ALL):
        given.append("pre_tockens, next_tockens")
    if given:
        raise NotImplementedError(f"npu_fusion_attention of the software NPU: no {', '.join(given)}")
    _check(query, key, value, atten_mask, head_num, input_layout, sparse_mode)
    options = (atten_mask, scale, keep_prob, sparse_mode)
    if input_layout == "TND":
        attention, maximum, total = _packed(query, key, value, actual_seq_qlen, actual_seq_kvlen, *options)
    else:
        heads_second = input_layout == "BNSD"
        q, k, v = (x if heads_second else x.transpose(1, 2) for x in (query, key, value))
        attention, maximum, total = _attend(q, k, v, *options)
        attention = attention if heads_second else attention.transpose(1, 2).contiguous()
    return attention, maximum, total, query.new_empty(0), 0, 0, 0


def _check(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    heads: int,
    layout: str,
    sparse_mode: int,
) -> None:
    dimensions = {"BSND": (4, 2), "BNSD": (4, 1), "TND": (3, 1)}
    if layout not in dimensions:
        raise NotImplementedError(
            f"npu_fusion_attention of the software NPU: layouts {', '.join(dimensions)}, not {layout}"
        )
    ranks, head_dimension = dimensions[layout]
    if any(x.dim() != ranks for x in (query, key, value)):
        raise RuntimeError(f"npu_fusion_attention: layout {layout} needs tensors of {ranks} dimensions")
    if query.shape[head_dimension] != heads or heads % key.shape[head_dimension]:
        raise RuntimeError(
            f"npu_fusion_attention: head_num={heads}, query has {query.shape[head_dimension]} heads, "
            f"key {key.shape[head_dimension]}"
        )
    for name, x in {"query": query, "key": key, "value": value, "atten_mask": mask}.items():
        if x is not None and x.device.type != "npu":
            raise RuntimeError(f"npu_fusion_attention: {name} is on {x.device}, expected npu")
    if sparse_mode in (LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL) and (
        mask is None or tuple(mask.shape[-2:]) != COMPRESSED_MASK
    ):
        raise RuntimeError(
            f"npu_fusion_attention: sparse_mode={sparse_mode} needs the compressed mask of {COMPRESSED_MASK}"
        )


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    keep_prob: float,
    sparse_mode: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention of (B, N, S, D) tensors."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) if groups > 1 else x for x in (key, value))
    scores = query.float() @ key.float().transpose(-1, -2) * scale
    hidden = _hidden(scores, mask, sparse_mode)
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    maximum = scores.amax(-1, keepdim=True).detach()
    exponents = (scores - maximum.masked_fill(maximum.isinf(), 0.0)).exp()
    total = exponents.sum(-1, keepdim=True)
    weights = exponents / total.masked_fill(total == 0, 1.0)
    if keep_prob < 1.0:
        weights = torch.nn.functional.dropout(weights, 1.0 - keep_prob)
    attention = (weights.to(value.dtype) @ value).to(query.dtype)
    return attention, maximum.expand(*maximum.shape[:-1], 8), total.detach().expand(*total.shape[:-1], 8)


def _hidden(scores: torch.Tensor, mask: torch.Tensor | None, sparse_mode: int) -> torch.Tensor | None:
    """True where a query may not see a key, broadcastable to the scores."""
    if sparse_mode in (DEFAULT_MASK, ALL_MASK):
        return None if mask is None else mask.bool()
    queries, keys = scores.shape[-2:]
    diagonal = 1 + (keys - queries if sparse_mode == RIGHT_DOWN_CAUSAL else 0)
    return torch.ones(queries, keys, dtype=torch.bool, device=scores.device).triu(diagonal)


def _packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: Sequence[int] | None,
    key_ends: Sequence[int] | None,
    mask: torch.Tensor | None,
    scale: float,
    keep_prob: float,
    sparse_mode: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention within each sequence of (T, N, D) tensors."""
    if not query_ends or not key_ends or len(query_ends) != len(key_ends):
        raise RuntimeError("npu_fusion_attention: TND needs actual_seq_qlen and actual_seq_kvlen of the same length")
    if (query_ends[-1], key_ends[-1]) != (query.shape[0], key.shape[0]):
        raise RuntimeError(
            f"npu_fusion_attention: the sequences end at {query_ends[-1]} and {key_ends[-1]}, "
            f"query has {query.shape[0]} tokens, key {key.shape[0]}"
        )
    parts = []
    for q_start, q_end, k_start, k_end in zip([0, *query_ends], query_ends, [0, *key_ends], key_ends, strict=False):
        rows, columns = slice(q_start, q_end), slice(k_start, k_end)
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query[rows], key[columns], value[columns]))
        parts.append([x.squeeze(0).transpose(0, 1) for x in _attend(q, k, v, mask, scale, keep_prob, sparse_mode)])
    attention, maximum, total = (torch.cat(list(each)) for each in zip(*parts, strict=True))
    return attention, maximum, total
