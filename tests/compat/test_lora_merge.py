"""Adapters are merged beside the frozen weights: the same values as TRL's, and nothing wanders."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]


@pytest.fixture
def model(tiny_policy: Any) -> Any:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base: Any = AutoModelForCausalLM.from_pretrained(tiny_policy(tied=False), dtype=torch.bfloat16)
    config = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear")
    made: Any = get_peft_model(base, config)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in made.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.05
    return made


def frozen(model: Any) -> dict[str, Any]:
    return {name: value.detach().clone() for name, value in model.named_parameters() if "lora_" not in name}


def trl_walk(model: Any) -> Any:
    from accelerate import Accelerator
    from transformers import PreTrainedTokenizerBase

    from ascent.rollout.weights.parameters import ParameterWalk

    return ParameterWalk(model, Accelerator(cpu=True), PreTrainedTokenizerBase())


def test_the_values_are_trl_s_and_the_frozen_weights_stay(model: Any) -> None:
    import torch

    walk, before = trl_walk(model), frozen(model)
    mine = {name: value.clone() for name, value in walk.named_tensors()}
    for _ in range(5):
        for _ in walk.named_tensors():
            pass
    assert all(torch.equal(before[name], value) for name, value in frozen(model).items())
    theirs = {name: value.clone() for name, value in walk._iter_named_params()}
    assert mine.keys() == theirs.keys()
    assert "model.layers.0.self_attn.q_proj.weight" in mine
    for name, value in theirs.items():
        assert torch.equal(mine[name], value), name


def test_trl_s_own_walk_still_wanders(model: Any) -> None:
    """When this fails, TRL reads merged weights without changing them: drop `compat/lora_merge`."""
    import torch

    before = frozen(model)
    walk = trl_walk(model)
    for _ in range(5):
        for _ in walk._iter_named_params():
            pass
    assert any(not torch.equal(before[name], value) for name, value in frozen(model).items())


def test_other_adapters_are_left_to_trl(tiny_policy: Any) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from ascent.compat.lora_merge import adds_up

    base: Any = AutoModelForCausalLM.from_pretrained(tiny_policy())
    assert not adds_up(base)
    assert not adds_up(
        get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", use_dora=True, target_modules=["q_proj"]))
    )
