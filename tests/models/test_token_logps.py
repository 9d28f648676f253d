"""Log-probabilities by a model's own head, a few positions at a time."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from tests.largest_tensor import LargestTensor

from ascent.models import token_logps as module
from ascent.models.token_logps import token_logps

pytestmark = pytest.mark.torch


def decoder(family: str, **settings: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes: dict[str, Any] = {"vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = AutoConfig.for_model(family, **{**sizes, "intermediate_size": 24, "initializer_range": 0.3, **settings})
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def batch(rows: int = 3, width: int = 9, vocabulary: int = 61) -> tuple[torch.Tensor, torch.Tensor]:
    ids_BT = torch.randint(vocabulary, (rows, width), generator=torch.Generator().manual_seed(0))
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[1, :4] = 0
    return ids_BT, mask_BT


def by_all_logits(model: Any, ids_BT: torch.Tensor, mask_BT: torch.Tensor, count: int, temperature: float) -> Any:
    with torch.no_grad():
        logits_BTV = model(input_ids=ids_BT, attention_mask=mask_BT).logits[:, -count - 1 : -1]
    return (logits_BTV / temperature).log_softmax(-1).gather(2, ids_BT[:, -count:, None])[..., 0]


@pytest.mark.parametrize(
    "model",
    [
        lambda: decoder("llama"),
        lambda: decoder("gemma2", head_dim=8, num_key_value_heads=1, final_logit_softcapping=2.0),
        lambda: decoder("cohere", logit_scale=0.5),
        lambda: decoder("gpt2", n_head=2, n_embd=16, n_layer=2),
        lambda: decoder("opt", ffn_dim=24, word_embed_proj_dim=16),
    ],
    ids=["llama", "softcap", "scale", "gpt2", "opt"],
)
def test_they_are_those_of_all_logits(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, (ids_BT, mask_BT) = model(), batch()
    expected_BC = by_all_logits(made, ids_BT, mask_BT, 5, 0.7)
    for positions in (1, 4, 15, 100):
        monkeypatch.setattr(module, "_LOGITS", positions * 61)
        found_BC = token_logps(made, ids_BT, mask_BT, 5, 0.7)
        torch.testing.assert_close(found_BC, expected_BC, rtol=1e-5, atol=1e-6)
    assert "forward" not in vars(made.base_model)


def test_adapters_are_in_it() -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(decoder("llama"), LoraConfig(init_lora_weights=False)).eval()
    torch.testing.assert_close(token_logps(model, *batch(), 8), by_all_logits(model, *batch(), 8, 1.0))


def test_of_no_tokens_there_are_none() -> None:
    assert token_logps(decoder("llama"), *batch(), 0).shape == (3, 0)


def test_the_backbone_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, runs = decoder("llama"), list[int]()
    model.model.layers[0].register_forward_hook(lambda *_: runs.append(1))
    monkeypatch.setattr(module, "_LOGITS", 61)
    token_logps(model, *batch(), 5)
    assert len(runs) == 1


def test_logits_of_all_positions_never_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary, rows, width = 5_000, 8, 33
    model, inputs = decoder("llama", vocab_size=vocabulary), batch(rows, width, vocabulary)
    monkeypatch.setattr(module, "_LOGITS", 16 * vocabulary)
    with LargestTensor() as largest:
        by_all_logits(model, *inputs, width - 1, 1.0)
    assert largest.elements >= rows * (width - 1) * vocabulary
    with LargestTensor() as largest:
        token_logps(model, *inputs, width - 1)
    assert largest.elements == 16 * vocabulary


def test_the_canary_makes_no_logits_of_all_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascent.rollout.weights.verify.canary_sequences import measure

    vocabulary = 5_000
    model = decoder("llama", vocab_size=vocabulary)
    sequences = tuple(tuple(range(number, number + 30 - number)) for number in range(1, 5))
    monkeypatch.setattr(module, "_LOGITS", 16 * vocabulary)
    with LargestTensor() as largest:
        canary = measure(model.train(), sequences, "float32")
    assert largest.elements == 16 * vocabulary
    assert model.training
    with torch.no_grad():
        for sequence, logps in zip(sequences, canary.logps, strict=True):
            logps_TV = model(torch.tensor([sequence])).logits[0, :-1].log_softmax(-1)
            expected_T = logps_TV.gather(1, torch.tensor(sequence[1:])[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(logps), expected_T, rtol=1e-5, atol=1e-5)
