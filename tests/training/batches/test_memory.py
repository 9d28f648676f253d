"""Nothing of shape (batch, length, vocabulary) exists, in forward or backward."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import torch
from tests.largest_tensor import LargestTensor
from tests.training.batches.tiny_models import build, padded, trl_pass

from ascent.training.batches.passes.packed_forward import PackedForward

pytestmark = pytest.mark.torch
VOCABULARY = 140_000
TILE = 32_768  # TRL's head computes so many columns of the logits at a time
ROWS = [(list(range(5, 25)), list(range(30 + row, 50 + row))) for row in range(8)]


def largest_of(function: Any, model: Any) -> int:
    with LargestTensor() as largest:
        logps_BC, entropies_BC = function(model, *padded(ROWS), compute_entropy=True)
        (logps_BC + entropies_BC).sum().backward()
    return largest.elements


@pytest.mark.parametrize("way", ["off", "rows", "cache"])
def test_only_a_tile_of_the_scored_positions_logits_exists(way: Any) -> None:
    model = build("llama", vocab_size=VOCABULARY, hidden_size=8, head_dim=4, num_attention_heads=2, num_hidden_layers=1)
    scored = 8 * 20
    assert scored * TILE > VOCABULARY * 8  # the head's weights are smaller than a tile
    assert largest_of(PackedForward(trl_pass, shared_prompt=way).logps, model) == scored * TILE


def test_it_would_be_seen() -> None:
    model = build("llama", vocab_size=VOCABULARY, hidden_size=8, head_dim=4, num_attention_heads=2, num_hidden_layers=1)

    def all_logits(model: Any, ids_BT: Any, mask_BT: Any, width: int, compute_entropy: bool) -> Any:
        logits_BTV = model(input_ids=ids_BT, attention_mask=mask_BT).logits[:, -width - 1 : -1]
        return logits_BTV.sum(-1), torch.zeros(())

    assert largest_of(all_logits, model) >= 8 * 20 * VOCABULARY
