"""Rows without padding: TRL's numbers and gradients, sequences that don't see each other, models that are refused.

On CPU the attention is a reference in this file that honours boundaries, under a name of its own; with `--device npu`
or cuda it is transformers' `flash_attention_2` there.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
import transformers  # noqa: E402
from transformers import AttentionInterface, AttentionMaskInterface  # noqa: E402
from trl.trainer.grpo_trainer import GRPOTrainer as TRLTrainer  # noqa: E402
from trl.trainer.utils import add_fused_lm_head  # noqa: E402

from ascent import devices  # noqa: E402
from ascent.compat.npu_flash_attention import left_out  # noqa: E402
from ascent.errors import InputError  # noqa: E402
from ascent.training.batches.passes.padding_free import PaddingFreeForward, pack  # noqa: E402
from ascent.training.batches.passes.padding_free_support import Packing, mixing, refusal  # noqa: E402

pytestmark = pytest.mark.torch
SIZE = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
REFERENCE, MIXING = "flash_reference", "flash_mixing"


def attend(module: Any, query: Any, key: Any, value: Any, _mask: Any, scaling: float, **boundaries: Any) -> Any:
    """Causal attention within each of a row's sequences (their ends are in `cu_seq_lens_q`)."""
    ends = boundaries["cu_seq_lens_q"].tolist()
    parts = []
    for start, end in itertools.pairwise(ends):
        q, k, v = (x[:, :, start:end] for x in (query, key, value))
        parts.append(
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
        )
    return torch.cat(parts, dim=2).transpose(1, 2), None


def attend_across(module: Any, query: Any, key: Any, value: Any, _mask: Any, scaling: float, **_: Any) -> Any:
    """Attention that takes a row for one sequence."""
    sdpa = torch.nn.functional.scaled_dot_product_attention
    return sdpa(query, key, value, is_causal=True, scale=scaling, enable_gqa=True).transpose(1, 2), None


@pytest.fixture(scope="module", autouse=True)
def _attentions() -> Iterator[None]:
    for name, function in ((REFERENCE, attend), (MIXING, attend_across)):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, AttentionMaskInterface._global_mapping["flash_attention_2"])
    yield
    for name in (REFERENCE, MIXING):
        del AttentionInterface._global_mapping[name], AttentionMaskInterface._global_mapping[name]


def model_of(family: str, *, padded: bool = False, attention: str | None = None, **settings: Any) -> Any:
    """A random model with TRL's fused head; `padded` with the attention that TRL's own path would have here."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SIZE, **settings})
    on_device = "flash_attention_2" if devices.kind() != "cpu" else "sdpa" if padded else REFERENCE
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(devices.current())
    model.config._attn_implementation = attention or on_device
    add_fused_lm_head(model, temperature=0.7, outputs=("log_probs", "entropy"))
    return model


def batch(prompts: list[int], completions: list[int], seed: int = 1) -> tuple[Any, Any, int]:
    """ids (B, L), mask (B, L) and the width of the completions: prompts on the left padded, completions on the right"""
    generator = torch.Generator().manual_seed(seed)
    width, kept = max(prompts), max(completions)
    ids = torch.randint(1, SIZE["vocab_size"], (len(prompts), width + kept), generator=generator)
    mask = torch.zeros_like(ids)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        mask[row, width - prompt : width + completion] = 1
    return (ids * mask).to(devices.current()), mask.to(devices.current()), kept


RAGGED = ([5, 1, 9, 3, 9], [7, 12, 1, 0, 4])


def trl_logps(model: Any, ids: Any, mask: Any, kept: int) -> tuple[Any, Any]:
    trainer: Any = SimpleNamespace(accelerator=SimpleNamespace(autocast=contextlib.nullcontext))
    method = inspect.unwrap(TRLTrainer._get_per_token_logps_and_entropies)
    logps, entropies, _ = method(trainer, model, ids, mask, kept, compute_entropy=True)
    return logps, entropies


def gradient(model: Any, logps: Any) -> Any:
    """Of a sum that weighs every token otherwise, all parameters in one vector."""
    model.zero_grad()
    (logps * torch.linspace(0.5, 2, logps.numel(), device=logps.device).view_as(logps)).sum().backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


@pytest.mark.parametrize(
    ("family", "settings"),
    [("Llama", {}), ("Qwen2", {"tie_word_embeddings": True}), ("Qwen3", {}), ("Gemma", {})],
)
def test_numbers_and_gradients_are_trl_s(family: str, settings: dict[str, Any]) -> None:
    ids, mask, kept = batch(*RAGGED)
    theirs, packed = model_of(family, padded=True, **settings), model_of(family, **settings)
    expected, expected_entropies = trl_logps(theirs, ids, mask, kept)
    logps, entropies = PaddingFreeForward().logps(packed, ids, mask, kept, compute_entropy=True)
    assert logps.shape == expected.shape == (5, 12)
    assert (logps != 0).sum() == sum(RAGGED[1])
    torch.testing.assert_close(logps, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(entropies, expected_entropies, atol=1e-5, rtol=0)
    mine, other = gradient(packed, logps), gradient(theirs, expected)
    assert other.norm() > 1
    assert (mine - other).norm() <= 1e-5 * other.norm()


def test_gradients_are_trl_s_with_adapters_and_checkpointing() -> None:
    from peft import LoraConfig, get_peft_model

    gradients = []
    ids, mask, kept = batch(*RAGGED)
    for padded in (True, False):
        inner = model_of("Llama", padded=padded)
        inner.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(0)
        model = get_peft_model(inner, LoraConfig(target_modules="all-linear", init_lora_weights=False))
        model.train()
        logps = (
            trl_logps(model, ids, mask, kept)[0] if padded else PaddingFreeForward().logps(model, ids, mask, kept)[0]
        )
        gradients.append(gradient(model, logps))
    assert gradients[0].norm() > 1
    assert (gradients[0] - gradients[1]).norm() <= 1e-5 * gradients[0].norm()


def test_a_sequence_does_not_change_another_s_numbers() -> None:
    """To the last bit; attention without boundaries, put in the same place, does change them."""
    ids, mask, kept = batch(*RAGGED)
    for attention, keeps_apart in ((None, True), (MIXING, False)):
        model = model_of("Llama", attention=attention)
        before = PaddingFreeForward().logps(model, ids, mask, kept)[0]
        for changed in (0, 2):
            others = [row for row in range(len(ids)) if row != changed]
            exchanged = ids.clone()
            exchanged[changed] = (ids[changed] + 1) % SIZE["vocab_size"] * mask[changed]
            after = PaddingFreeForward().logps(model, exchanged, mask, kept)[0]
            assert not torch.equal(after[changed], before[changed])
            assert torch.equal(after[others], before[others]) == keeps_apart


def test_only_tokens_are_computed_and_only_scored_ones_by_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    from trl.trainer.utils import _ChunkedLogProbFunction as scoring  # type: ignore[attr-defined]

    seen: list[int] = []
    apply = scoring.apply

    def counted(hidden: Any, *others: Any) -> Any:
        seen.append(len(hidden))
        return apply(hidden, *others)

    monkeypatch.setattr(scoring, "apply", counted)
    model = model_of("Llama")
    model.model.layers[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    PaddingFreeForward().logps(model, *batch(*RAGGED))
    assert seen == [sum(RAGGED[0]) + sum(RAGGED[1]), sum(RAGGED[1])]
    assert not model.model._forward_hooks  # what selects the places is gone


def test_a_batch_in_which_nothing_is_scored_has_a_gradient_of_zeros() -> None:
    model = model_of("Llama")
    ids, mask, _ = batch([4, 2], [1, 1])
    mask[:, -1] = 0
    logps, entropies = PaddingFreeForward().logps(model, ids, mask, 1, compute_entropy=True)
    assert entropies is not None
    assert logps.tolist() == entropies.tolist() == [[0.0], [0.0]]
    assert gradient(model, logps).abs().max() == 0


def test_sequences_that_nothing_predicts_are_refused() -> None:
    ids, mask, kept = batch([3, 3], [2, 2])
    with pytest.raises(InputError, match="without any token"):
        pack(ids, torch.zeros_like(mask), kept)
    mask[1, :3] = 0
    with pytest.raises(InputError, match="without a prompt"):
        pack(ids, mask, kept)


def test_what_auto_decides_is_told_once_and_on_is_refused() -> None:
    told: list[str] = []
    packing = Packing("auto", PaddingFreeForward(), told.append)
    assert packing.forward_for(model_of("Llama")) is packing.forward_for(model_of("Llama")) is not None
    assert told == ["packing: batches are computed without padding"]
    for attention, reason in (("sdpa", "takes no boundaries"), (MIXING, "mixed two packed sequences")):
        told.clear()
        model = model_of("Llama", attention=attention)
        assert Packing("auto", PaddingFreeForward(), told.append).forward_for(model) is None
        if attention == "sdpa":  # the usual one, for which there are other ways
            assert not told
        else:
            assert len(told) == 1
            assert reason in told[0]
        with pytest.raises(InputError, match=reason):
            Packing("on", PaddingFreeForward(), told.append).forward_for(model)
    assert Packing("off", PaddingFreeForward(), told.append).forward_for(model_of("Llama")) is None
    with pytest.raises(InputError, match="auto, on or off"):
        Packing("maybe", PaddingFreeForward(), told.append)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("family", "settings", "reason"),
    [
        ("Llama", {"attention": "eager"}, "eager takes no boundaries"),
        ("Llama", {"attention_dropout": 0.1}, "drops out at random"),
        ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "longest sequence"),
        ("Qwen3Next", {"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ("Rwkv", {}, "has a state"),
        ("GPTNeo", {"attention_types": [[["global"], 2]], "num_layers": 2, "num_heads": 4}, "aren't rotary"),
    ],
)
def test_models_whose_sequences_can_t_share_a_row(family: str, settings: dict[str, Any], reason: str) -> None:
    config = getattr(transformers, f"{family}Config")(
        **{**SIZE, **{name: value for name, value in settings.items() if name != "attention"}}
    )
    with torch.device("meta"):
        model = getattr(transformers, f"{family}ForCausalLM")(config)
    model.config._attn_implementation = settings.get("attention", REFERENCE)
    assert reason in (refusal(model) or "nothing")


def test_what_the_npu_s_attention_leaves_out_is_known() -> None:
    npu, cuda = (SimpleNamespace(type=kind) for kind in ("npu", "cuda"))
    for family, settings, named in (
        ("Mistral", {"sliding_window": 64}, ("sliding_window=64",)),
        ("Qwen2", {"use_sliding_window": False}, ()),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}, ("sliding_window=64",)),
        ("Gemma2", {}, ("sliding_window=4096", "attn_logit_softcapping=50.0")),
        ("GptOss", {}, ("sliding_window=128", "attention sinks")),
        ("Llama", {}, ()),
    ):
        config = getattr(transformers, f"{family}Config")(**{**SIZE, **settings})
        assert left_out(config, npu) == named, family  # type: ignore[arg-type]
        assert left_out(config, cuda) == (), family  # type: ignore[arg-type]


def test_a_model_that_can_t_be_tried_is_not_packed() -> None:
    model = model_of("Llama")
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert "nothing can be tried" in (mixing(model, PaddingFreeForward()) or "")
