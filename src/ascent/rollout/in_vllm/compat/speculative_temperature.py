"""Speculative decoding on vLLM's CPU backend: draft tokens are judged at a temperature of whatever was in memory.

`expand_batch_to_tokens` makes the temperature of each draft token of that of its request, in place of a Triton kernel
by `_expand_kernel_impl` on CPU. That hands int64 copies to its C++ function, of the output too, so the result of any
other type stays uninitialised: completions are drawn from another distribution than the model's, and their
log-probabilities are those of that one, or NaN. Seen in vLLM 0.31, with n-gram and suffix proposers alike.

Loaded inside vLLM's processes: torch and vllm only.
"""

from __future__ import annotations

from typing import Any

import torch


def expand(
    output: torch.Tensor,
    of_request: torch.Tensor,
    ends: torch.Tensor,
    replace_from: float,
    replace_to: float,
    *_launch: Any,
) -> None:
    """Fill `output` (tokens,) with `of_request` (requests,), each as often as it has tokens up to its place in `ends`,
    their cumulative numbers; where it is `replace_from`, with `replace_to`."""
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    values = torch.where(of_request == replace_from, replace_to, of_request)
    output.copy_(torch.repeat_interleave(values, counts.long()))


def mend() -> None:
    """Let vLLM's CPU platform take `expand` in the place of its own. It registers its kernels with its first worker, so
    call this before. Safe to call again."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    try:
        from vllm.utils import cpu_triton_utils
    except ImportError:  # older releases, which have no speculative decoding on CPU
        return
    cpu_triton_utils._expand_kernel_impl = expand
