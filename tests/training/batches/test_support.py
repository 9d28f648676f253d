"""Models for which a layout of our own would not be exact are seen, and are given TRL's pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")


import torch
from tests.training.batches.equality import assert_equal_to_trl
from tests.training.batches.tiny_models import build, padded, ragged, trl_pass

from ascent.errors import InputError
from ascent.training.batches.passes.packed_forward import PackedForward
from ascent.training.batches.passes.support import Support, support_of

pytestmark = pytest.mark.torch
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 64,
}


def adapted(**settings: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(build("llama"), LoraConfig(r=4, target_modules=["q_proj"], **settings)).train()


def noisy_embeddings() -> Any:
    model = build("llama")
    model.get_input_embeddings().neftune_noise_alpha = 5.0
    return model


def test_what_is_known_is_exact() -> None:
    assert support_of(build("llama")) == Support()
    assert support_of(adapted()) == Support()
    assert support_of(build("llama", attention_dropout=0.5).eval()) == Support()


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: build("llama", attention_dropout=0.5), "attention_dropout of 0.5"),
        (lambda: build("phi", resid_pdrop=0.25), "dropout of 0.25"),
        (lambda: adapted(lora_dropout=0.125), "dropout of 0.125"),
        (lambda: build("mixtral", router_jitter_noise=0.1), "router_jitter_noise"),
        (lambda: build("qwen3_moe", output_router_logits=True), "router's loss"),
        (noisy_embeddings, "NEFTune"),
    ],
)
def test_where_equal_rows_are_not_computed_equally_all_is_left_to_trl(model: Any, reason: str) -> None:
    found = support_of(model())
    assert all(reason in (part or "") for part in (found.equal_rows, found.own_rows, found.sharing, found.caching)), (
        found
    )


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: build("gpt2"), "gpt2"),
        (lambda: build("bloom"), "bloom"),
        (lambda: build("hunyuan_v1_dense"), "hunyuan_v1_dense"),
        (lambda: build("qwen3", layer_types=["full_attention", "linear_attention"], fused=False), "linear_attention"),
        (lambda: build("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "dynamic"),
        (lambda: build("llama", rope_parameters=LONGROPE), "longrope"),
    ],
)
def test_architectures_that_are_not_known_keep_trls_rows(model: Any, reason: str) -> None:
    found = support_of(model())
    assert found.equal_rows is None
    assert all(reason in (part or "") for part in (found.own_rows, found.sharing, found.caching)), found


def test_compiled_models_keep_trls_rows() -> None:
    model = build("llama")
    model.compile()
    assert "compiled" in (support_of(model).own_rows or "")


@pytest.fixture
def other_attention() -> Iterator[Any]:
    """A model with an attention implementation of another name than those that are known to take masks."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register("other_attention", sdpa_attention_forward)
    AttentionMaskInterface.register("other_attention", sdpa_mask)
    yield build("llama", attn_implementation="other_attention")
    for interface in (AttentionInterface, AttentionMaskInterface):
        del interface._global_mapping["other_attention"]


def test_attention_without_masks_shares_nothing(other_attention: Any) -> None:
    found = support_of(other_attention)
    assert found.own_rows is None
    assert "attention other_attention takes no mask" in (found.sharing or "")
    packed = PackedForward(trl_pass)
    assert_equal_to_trl(packed, other_attention, padded(ragged(2)))
    assert packed.take_works()[0].way == "plain"


def test_adapters_that_change_the_sequence_are_left_to_trl() -> None:
    from peft import PromptTuningConfig, get_peft_model

    model = get_peft_model(build("llama"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    assert "PROMPT_TUNING" in (support_of(model).equal_rows or "")
    batch = padded(ragged(1))
    notes: list[str] = []
    packed = PackedForward(trl_pass, tell=notes.append)
    assert_equal_to_trl(packed, model, batch)
    assert_equal_to_trl(packed, model, batch)
    assert len(notes) == 1
    assert "PROMPT_TUNING" in notes[0]
    assert {work.way for work in packed.take_works()} == {"trl"}


@pytest.mark.parametrize("family", ["gpt2", "bloom", "hunyuan_v1_dense"])
def test_equal_rows_are_computed_once_by_trls_pass_too(family: str) -> None:
    model, notes = build(family), list[str]()
    packed = PackedForward(trl_pass, tell=notes.append)
    assert_equal_to_trl(packed, model, padded(ragged(2)))
    (work,) = packed.take_works()
    assert (work.way, work.sequences) == ("trl", 12)
    assert work.distinct < 12
    assert len(notes) == 1


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3_text", "qwen2"])
def test_sequences_beyond_a_sliding_window_have_rows_of_their_own(family: str) -> None:
    settings: dict[str, Any] = {"sliding_window": 8}
    if family == "qwen2":
        settings |= {"use_sliding_window": True, "max_window_layers": 0}
    model = build(family, **settings)
    assert support_of(model).window == 8
    packed = PackedForward(trl_pass, shared_prompt="rows")
    short = [([5, 6, 7], [number, 9, 10]) for number in range(11, 15)]
    long = [(list(range(20, 30)), [number, 9, 10]) for number in range(11, 15)]
    for rows, tokens in ((short, 3 + 4 * 2), (long, 4 * 12), (short + long, 3 + 4 * 2 + 4 * 12)):
        assert_equal_to_trl(packed, model, padded(rows))
        (work,) = packed.take_works()[:1]
        assert work.computed_tokens == tokens


def test_a_window_that_no_layer_has_limits_nothing() -> None:
    assert support_of(build("qwen2", sliding_window=8, use_sliding_window=False)).window is None
    assert support_of(build("mistral", sliding_window=None)).window is None


def test_rows_with_holes_are_left_to_trl() -> None:
    model, notes = build("llama"), list[str]()
    ids_BT, mask_BT, width = padded(ragged(3))
    mask_BT[0, -width] = 0
    mask_BT[0, -width + 1] = 1
    packed = PackedForward(trl_pass, tell=notes.append)
    assert_equal_to_trl(packed, model, (ids_BT, mask_BT, width))
    assert packed.take_works()[0].way == "trl"
    assert "hole" in notes[0]


@pytest.mark.parametrize("way", ["rows", "cache"])
def test_a_way_that_is_asked_for_and_cannot_be_had_is_an_error(way: Any, other_attention: Any) -> None:
    for model, reason in ((other_attention, "other_attention"), (build("gpt2"), "gpt2")):
        with pytest.raises(InputError, match=f"shared_prompt={way} can't be had: .*{reason}"):
            PackedForward(trl_pass, shared_prompt=way).logps(model, *padded(ragged(1)))
    with pytest.raises(InputError, match="expected one of auto, rows, cache, off"):
        PackedForward(trl_pass, shared_prompt="on")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("broken", "kept", "lost"),
    [
        ("row_mask", {"plain", "cache"}, "rows"),
        ("continuation_mask", {"plain", "rows"}, "cache"),
    ],
)
def test_a_way_that_does_not_agree_with_trls_pass_is_not_used(
    broken: str, kept: set[str], lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for attention that takes a mask otherwise than it should: everything is seen."""
    from ascent.training.batches.passes import running

    working = getattr(running, broken)
    monkeypatch.setattr(running, broken, lambda *arguments: torch.ones_like(working(*arguments)))
    model, batch = build("llama"), padded([(list(range(5, 45)), [number, 9, 10]) for number in range(11, 15)])
    packed = PackedForward(trl_pass)
    assert_equal_to_trl(packed, model, batch)
    assert packed.take_works()[0].way in kept
    if lost == "rows":  # what shares rows is what would go on from keys and values
        with pytest.raises(InputError, match=r"by way of rows, differ from those of TRL's pass by \d"):
            PackedForward(trl_pass, shared_prompt="rows").logps(model, *batch)


def test_a_model_whose_rows_depend_on_padding_keeps_trls_rows() -> None:
    """A stand-in for a model that reads positions in its own way."""
    model, notes = build("llama"), list[str]()
    model.model.layers[0].register_forward_hook(
        lambda _, __, output: output + 0.1 * torch.arange(output.shape[1])[None, :, None]
    )
    packed = PackedForward(trl_pass, tell=notes.append)
    assert_equal_to_trl(packed, model, padded(ragged(2)))
    assert packed.take_works()[0].way == "trl"
    assert "by way of plain" in notes[0]


def test_the_check_runs_once_a_model_and_way() -> None:
    model, calls = build("llama"), list[int]()
    model.model.layers[0].register_forward_pre_hook(lambda *_: calls.append(1))
    packed, batch = PackedForward(trl_pass), padded(ragged(2))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    packed.logps(model, *batch)
    first = len(calls)
    packed.logps(model, *batch)
    each = len(calls) - first
    assert first == each + 4  # TRL's pass, plain, and rows with a mask and without
    calls.clear()
    with torch.no_grad():
        packed.logps(model.eval(), *batch)
        checked = len(calls)
        packed.logps(model, *batch)
    assert checked - (len(calls) - checked) == 3  # TRL's pass, and the two passes of the cache
