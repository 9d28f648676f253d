"""transformers turns additive attention masks into booleans wherever torch_npu can be imported.

`sdpa_attention_forward` then reads a float mask as "0 keeps, everything else hides", on any device: an additive bias
such as ALiBi, or a soft mask, is lost without a word. Boolean masks, which the usual language models get, are not
concerned. With the mend a float mask is passed on as it is; torch_npu computes it with smaller operators instead of
its fused one. Seen in transformers 5.5.4 to 5.17.
"""

from __future__ import annotations


def keep_float_masks() -> None:
    """Let additive attention masks keep their values. Safe to call again."""
    from transformers.integrations import sdpa_attention

    sdpa_attention._is_torch_npu_available = False
