"""What is computed in which precision: the levels, what they refuse, float16's rules, the head."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.small_trainer import make_trainer

from ascent import devices
from ascent.errors import InputError

pytestmark = pytest.mark.torch
Policy = Callable[..., Path]


def precision(device: str = "npu", *, has_bf16: bool = True, **given: Any) -> tuple[bool | None, bool]:
    """`bf16` and `fp16` that arguments come to have; bf16 None is TRL's to fill in."""
    from ascent.training.numerics.precision import set_precision

    args = SimpleNamespace(
        **{"npu_optim_level": None, "bf16": None, "fp16": False, "fsdp": "", "use_cpu": False} | given
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "kind", lambda: device)
        patch.setattr(devices, "supports_bf16", lambda: has_bf16)
        set_precision(args)
    return args.bf16, args.fp16


def test_levels() -> None:
    assert precision() == (None, False)
    assert precision(npu_optim_level="O0") == (False, False)
    assert precision(npu_optim_level="O1") == (True, False)
    assert precision(npu_optim_level="O1", has_bf16=False) == (False, True)
    assert precision(npu_optim_level="O1", fp16=True) == (None, True)
    assert precision("cpu", npu_optim_level="O1", has_bf16=False) == (True, False)
    assert precision(npu_optim_level="O2", fsdp="full_shard") == (True, False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"npu_optim_level": "O3"}, "should be O0, O1 or O2"),
        ({"npu_optim_level": "o1"}, "should be O0, O1 or O2"),
        ({"npu_optim_level": "O0", "bf16": True}, "contradicts bf16=true"),
        ({"npu_optim_level": "O0", "fp16": True}, "contradicts fp16=true"),
        ({"npu_optim_level": "O1", "bf16": False}, "contradicts bf16=false"),
        ({"npu_optim_level": "O2"}, "there is no fsdp here"),
        ({"bf16": True, "fp16": True}, "contradicts"),
        ({"device": "cpu", "fp16": True}, "needs an NPU or a GPU"),
    ],
)
def test_what_contradicts_or_can_not_be_had_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        precision(**given)


def test_the_engine_computes_as_the_trainer_does() -> None:
    from ascent.training.numerics.precision import engine_dtype

    assert engine_dtype("float32", fp16=False, device_kind="cpu") == "float32"
    assert engine_dtype("float32", fp16=False, device_kind="npu") == "bfloat16"
    assert engine_dtype("float32", fp16=True, device_kind="npu") == "float16"
    assert engine_dtype("bfloat16", fp16=False, device_kind="cuda") == "bfloat16"


def test_float16_weights_are_refused_before_training(tiny_policy: Policy, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the trained weights are float16") as refused:
        make_trainer(tiny_policy(), tmp_path, model_init_kwargs={"dtype": "float16"})
    assert "trainer.fp16=true" in refused.value.mend


def test_adapters_on_a_float16_base_train(tiny_policy: Policy, tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from ascent.training.numerics.precision import refuse_half_weights

    base: Any = AutoModelForCausalLM.from_pretrained(tiny_policy(), dtype=torch.float16)
    with pytest.raises(InputError):
        refuse_half_weights(base)
    refuse_half_weights(get_peft_model(base, LoraConfig(target_modules=["q_proj"])))


@pytest.mark.parametrize(
    ("factor", "what"), [(1.0, "nothing"), (2e4, "warns"), (1e9, "refuses"), (math.inf, "refuses")]
)
def test_a_look_at_the_largest_activations_before_float16(tiny_policy: Policy, factor: float, what: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from ascent.training.numerics.activations import LARGEST_FLOAT16, check_before_float16, largest_output

    model: Any = AutoModelForCausalLM.from_pretrained(tiny_policy())
    layer = model.model.layers[1].mlp.down_proj
    usual = largest_output(model, [[5, 6, 7]])
    assert usual is not None
    with torch.no_grad():
        layer.weight[3] *= factor
    told: list[str] = []
    if what == "refuses":
        with pytest.raises(InputError, match=r"model\.layers\.1\.mlp\.down_proj gives outputs of up to"):
            check_before_float16(model, [[5, 6, 7]], told.append)
        return
    if what == "warns":  # scaled so that it lies between the bounds
        now = largest_output(model, [[5, 6, 7]])
        assert now is not None
        with torch.no_grad():
            layer.weight[3] *= LARGEST_FLOAT16 / 2 / now.value
    check_before_float16(model, [[5, 6, 7]], told.append)
    assert len(told) == (what == "warns")
    assert not told or "model.layers.1.mlp.down_proj" in told[0]
    check_before_float16(model, [], told.append)


def test_a_device_that_saturates_says_that_no_guard_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from ascent.training.numerics.precision import tell_saturation

    told: list[str] = []
    monkeypatch.setattr(devices, "name", lambda: "Ascend910A")
    monkeypatch.setattr(devices, "saturates", lambda: False)
    tell_saturation(told.append)
    assert told == []
    monkeypatch.setattr(devices, "saturates", lambda: True)
    tell_saturation(told.append)
    assert "Ascend910A gives the largest number instead of infinity" in told[0]
    assert "neither the guard against bad steps nor fp16's scaler sees it" in told[0]


@pytest.mark.parametrize("version", ["0.23.0", "0.30.2", "0.31.0", "1.0.0"])
def test_the_head_is_float32_on_both_sides_or_on_neither(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from ascent.rollout.engine import EngineSettings
    from ascent.rollout.vllm_arguments import command_line, engine_arguments
    from ascent.training.numerics import head

    monkeypatch.setattr(head, "installed_vllm", lambda: version)
    assert head.head_dtype(SimpleNamespace(cast_lm_head_to_fp32=False)) is None
    asked = SimpleNamespace(cast_lm_head_to_fp32=True)
    if version.startswith("0.2") or version.startswith("0.30"):
        with pytest.raises(InputError, match=f"vLLM {version} has no float32 head"):
            head.head_dtype(asked)
        return
    assert head.head_dtype(asked) == "float32"
    arguments = engine_arguments(EngineSettings("m", "bfloat16", 64, head_dtype="float32"))
    assert arguments["hf_overrides"] == {"head_dtype": "float32"}
    assert '{"head_dtype": "float32"}' in command_line(arguments)
    assert engine_arguments(EngineSettings("m", "bfloat16", 64))["hf_overrides"] == {}
