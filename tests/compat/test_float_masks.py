"""The fault is there (drop the module when it isn't), and the mend works. A fresh process: the mend is for good."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]

# The attention of one query over three keys with an additive bias, against the definition of attention.
_PROGRAM = """
import torch
from transformers.integrations import sdpa_attention
sdpa_attention._is_torch_npu_available = True  # as it is where torch_npu can be imported
{mend}
torch.manual_seed(0)
query, key, value = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 3, 8), torch.randn(1, 1, 3, 8)
bias = torch.tensor([[[[0.0, -1.0, -2.0]]]])
found, _ = sdpa_attention.sdpa_attention_forward(torch.nn.Module(), query, key, value, bias)
expected = (query @ key.mT / 8**0.5 + bias).softmax(-1) @ value
print((found.transpose(1, 2) - expected).abs().max().item())
"""


def error_of_attention(mend: str) -> float:
    command = [sys.executable, "-c", _PROGRAM.format(mend=mend)]
    return float(subprocess.run(command, capture_output=True, text=True, timeout=1500, check=True).stdout)


def test_transformers_still_turns_additive_masks_into_booleans() -> None:
    assert error_of_attention("") > 0.1


def test_additive_masks_keep_their_values_after_the_mend() -> None:
    assert error_of_attention("from ascent.compat.float_masks import keep_float_masks; keep_float_masks()") < 1e-6
