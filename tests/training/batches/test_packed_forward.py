"""The packed pass gives TRL's values and gradients, whatever the batch."""

from __future__ import annotations

import contextlib
import functools
import random
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("trl")

import torch
from tests.training.batches.equality import assert_equal_to_trl
from tests.training.batches.tiny_models import VOCABULARY, build, padded, ragged, trl_pass

from ascent.errors import InputError
from ascent.training.batches.passes.packed_forward import PackedForward
from ascent.training.batches.passes.support import FAMILIES

pytestmark = pytest.mark.torch


def way_of(packed: PackedForward) -> str:
    (work,) = packed.take_works()
    return work.way


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("way", ["off", "rows", "cache"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma"])
def test_each_way_gives_trls_values_and_gradients(family: str, way: Any, attention: str) -> None:
    model = build(family, attn_implementation=attention)
    packed = PackedForward(trl_pass, shared_prompt=way)
    for seed in range(2):
        assert_equal_to_trl(packed, model, padded(ragged(seed), prompt_width=23, width=14))
        assert way_of(packed) == {"off": "plain"}.get(way, way)


@pytest.mark.parametrize("way", ["off", "rows"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_that_is_named_gives_trls_values(family: str, way: Any) -> None:
    model = build(family)
    packed = PackedForward(trl_pass, shared_prompt=way)
    assert_equal_to_trl(packed, model, padded(ragged(3)))
    assert way_of(packed) == {"off": "plain"}.get(way, way)


@pytest.mark.parametrize(
    "family", sorted(FAMILIES - {"exaone4", "gemma2", "gemma3_text", "ministral"})
)  # those have windows
def test_every_family_without_window_goes_on_from_keys_and_values(family: str) -> None:
    assert_equal_to_trl(PackedForward(trl_pass, shared_prompt="cache"), build(family), padded(ragged(3)))


@pytest.mark.parametrize("way", ["off", "rows", "cache"])
def test_the_input_embedding_as_head(way: Any) -> None:
    model = build("qwen2", tie_word_embeddings=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert_equal_to_trl(PackedForward(trl_pass, shared_prompt=way), model, padded(ragged(4)))


@pytest.mark.parametrize("way", ["off", "rows", "cache"])
def test_adapters(way: Any) -> None:
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    model = get_peft_model(build("llama"), settings)
    packed = PackedForward(trl_pass, shared_prompt=way)
    assert_equal_to_trl(packed, model, padded(ragged(5)))
    with model.disable_adapter(), torch.no_grad():  # as TRL asks for the reference's
        batch = padded(ragged(5))
        torch.testing.assert_close(packed.logps(model, *batch)[0], trl_pass(model, *batch)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant: bool) -> None:
    model = build("llama")
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    packed = PackedForward(trl_pass, shared_prompt="rows")
    assert_equal_to_trl(packed, model, padded(ragged(6)))
    assert way_of(packed) == "rows"
    with pytest.raises(InputError, match="gradient checkpointing"):
        PackedForward(trl_pass, shared_prompt="cache").logps(model, *padded(ragged(6)))


@pytest.mark.parametrize("way", ["off", "rows", "cache"])
def test_without_gradient_and_in_evaluation(way: Any) -> None:
    model, batch = build("qwen3", attention_dropout=0.5).eval(), padded(ragged(7))
    with torch.no_grad():
        logps_BC, entropies_BC = PackedForward(trl_pass, shared_prompt=way).logps(model, *batch)
        expected_BC, _ = trl_pass(model, *batch)
    assert entropies_BC is None
    torch.testing.assert_close(logps_BC, expected_BC, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("half", ["weights", "autocast"])
def test_in_16_bits_all_ways_differ_by_rounding_only(half: str) -> None:
    model, batch = build("llama", initializer_range=0.1), padded(ragged(5))
    context: Any = contextlib.nullcontext
    if half == "weights":
        model = model.to(torch.bfloat16)
    else:
        context = functools.partial(torch.autocast, "cpu", torch.bfloat16)
    with context():
        expected_BC, _ = trl_pass(model, *batch)
    ways: tuple[Any, ...] = ("off", "rows", "cache")
    for way in ways:
        packed = PackedForward(trl_pass, shared_prompt=way, autocast=context)
        found_BC, _ = packed.logps(model, *batch)
        assert way_of(packed) == {"off": "plain"}.get(way, way)
        assert 0 < (found_BC - expected_BC).detach().abs().mean().item() < 0.02


def test_many_random_batches() -> None:
    model = build("llama")
    ways: set[str] = set()
    for seed in range(10, 22):
        for way in ("auto", "rows", "cache"):
            packed = PackedForward(trl_pass, shared_prompt=way, bucketed=bool(seed % 2), few_row_counts=seed % 4 < 2)
            rows = ragged(seed, groups=1 + seed % 4, size=2 + seed % 5, longest=1 + seed)
            random.Random(seed).shuffle(rows)  # as TRL shuffles a generation
            assert_equal_to_trl(packed, model, padded(rows))
            ways.add(way_of(packed))
    assert ways == {"plain", "rows", "cache"}


@pytest.mark.parametrize("way", ["auto", "off", "rows", "cache"])
def test_batches_at_the_edges(way: Any) -> None:
    model, packed = build("llama"), PackedForward(trl_pass, shared_prompt=way)
    for rows in (
        [([5, 6, 7], [8, 9])] * 4,  # all equal
        [([5, 6, 7], [token]) for token in (8, 9, 10)],  # one token each
        [([5], [8]), ([5], [8, 9])],  # a prompt of one token
        [([5, 6], []), ([5, 6], [7, 8])],  # truncated completions are masked whole
        [([5, 6], [7]), ([5, 6, 7], [8])],  # one sequence's prompt and completion are another's prompt
    ):
        assert_equal_to_trl(packed, model, padded(rows, prompt_width=5, width=4))
        packed.take_works()


@pytest.mark.parametrize("way", ["auto", "rows", "cache"])
def test_nothing_to_score_gives_a_gradient_of_zero_to_all(way: Any) -> None:
    model, batch = build("llama"), padded([([5, 6], []), ([5], [])], width=3)
    logps_BC, _ = PackedForward(trl_pass, shared_prompt=way).logps(model, *batch)
    assert logps_BC.shape == (2, 3)
    assert not logps_BC.any()
    logps_BC.sum().backward()
    assert all(value.grad is not None and not value.grad.any() for value in model.parameters())


def test_equal_rows_are_computed_once() -> None:
    model = build("llama")
    packed = PackedForward(trl_pass, shared_prompt="off")
    packed.logps(model, *padded([([5, 6, 7], [8, 9])] * 6 + [([5, 6, 7], [8])] * 2))
    (work,) = packed.take_works()
    assert (work.sequences, work.distinct, work.computed_tokens, work.padded_tokens) == (8, 2, 2 * 4, 8 * 5)


def test_a_prompt_is_computed_once_for_its_group() -> None:
    model = build("llama")
    rows = [(list(range(3, 43)), [50 + number, 60, 61]) for number in range(8)]
    packed = PackedForward(trl_pass)
    packed.logps(model, *padded(rows))
    (work,) = packed.take_works()
    assert work.way in {"rows", "cache"}
    assert work.computed_tokens == 40 + 8 * 2


def test_memory_stays_below_that_of_trls_micro_batches() -> None:
    model, rows = build("llama"), ragged(8, groups=6)
    tokens: list[int] = []
    model.model.layers[0].register_forward_pre_hook(lambda _, inputs: tokens.append(inputs[0][..., 0].numel()))
    batch = padded(rows)
    for way in ("off", "rows", "cache"):
        packed = PackedForward(trl_pass, shared_prompt=way)
        packed.logps(model, *batch)  # the check of the model is behind us
        tokens.clear()
        found, _ = packed.logps(model, *batch, batch_size=3)
        assert len(tokens) > 1
        assert max(tokens) <= 3 * batch[0].shape[1]
        torch.testing.assert_close(found, trl_pass(model, *batch)[0], rtol=1e-5, atol=1e-5)


def test_host_copies_spare_the_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascent.training.batches.passes import packed_forward, sequences

    model, batch = build("llama"), padded(ragged(9))
    host = sequences.to_host(*batch[:2])
    monkeypatch.setattr(packed_forward, "to_host", None)
    found, _ = PackedForward(trl_pass).logps(model, *batch, host=host)
    torch.testing.assert_close(found, trl_pass(model, *batch)[0], rtol=1e-5, atol=1e-5)


def test_the_backbone_is_itself_again_even_after_an_error() -> None:
    model, batch = build("llama"), padded(ragged(9))
    with pytest.raises(IndexError):
        PackedForward(trl_pass).logps(model, batch[0] + VOCABULARY, *batch[1:])
    assert "forward" not in vars(model.model)
    assert_equal_to_trl(PackedForward(trl_pass), model, batch)
