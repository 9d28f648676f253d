"""Adapters: what reaches an engine with weights of its own computes what is trained, or is refused before training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascent.errors import InputError

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

QUERY = ["q_proj"]
EVERYWHERE = ["q_proj", "down_proj"]


def adapted(folder: Path, kind: str, **settings: Any) -> Any:
    """The tiny policy with adapters (a class of PEFT's configurations), as they are made."""
    import peft
    from transformers import AutoModelForCausalLM

    return peft.get_peft_model(
        AutoModelForCausalLM.from_pretrained(folder), getattr(peft, kind)(task_type="CAUSAL_LM", **settings)
    )


@pytest.mark.parametrize(
    ("tied", "kind", "settings"),
    [
        pytest.param(True, "LoraConfig", {"target_modules": EVERYWHERE}, id="lora"),
        pytest.param(True, "LoraConfig", {"target_modules": EVERYWHERE, "use_rslora": True}, id="rslora"),
        pytest.param(True, "LoraConfig", {"target_modules": EVERYWHERE, "use_dora": True}, id="dora"),
        pytest.param(True, "IA3Config", {}, id="ia3"),
        pytest.param(
            True,
            "LoraConfig",
            {"target_modules": ["q_proj", "embed_tokens"], "ensure_weight_tying": True},
            id="embedding-and-head-alike",
        ),
        pytest.param(
            True,
            "LoraConfig",
            {"target_modules": QUERY, "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
            id="whole-embedding-and-head-alike",
        ),
        pytest.param(False, "LoraConfig", {"target_modules": ["q_proj", "embed_tokens"]}, id="untied-embedding"),
        pytest.param(False, "LoraConfig", {"target_modules": ["q_proj", "lm_head"]}, id="untied-head"),
        pytest.param(
            False, "LoraConfig", {"target_modules": QUERY, "modules_to_save": ["lm_head"]}, id="untied-whole-head"
        ),
    ],
)
def test_what_is_sent_computes_what_is_trained(
    tiny_policy: Callable[..., Path], tied: bool, kind: str, settings: dict[str, Any]
) -> None:
    """The weights that leave for the engine, in a plain model, give the log-probabilities of the adapted one."""
    import torch
    from accelerate import Accelerator
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ascent.rollout.weights.adapters import refuse_unmergeable
    from ascent.rollout.weights.parameters import ParameterWalk

    folder = tiny_policy(tied=tied, dtype="float32")
    model = adapted(folder, kind, **settings).eval()
    refuse_unmergeable(model)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    ids = torch.randint(2, 200, (2, 12))
    with torch.no_grad():
        expected = model(ids).logits.log_softmax(-1)
        plain = AutoModelForCausalLM.from_pretrained(folder)
        before = plain(ids).logits.log_softmax(-1)
        walk = ParameterWalk(model, Accelerator(cpu=True), AutoTokenizer.from_pretrained(folder))
        sent = {name: tensor.clone() for name, tensor in walk.named_tensors()}
        assert set(sent) <= set(plain.state_dict())
        plain.load_state_dict(sent, strict=False)
        found = plain(ids).logits.log_softmax(-1)
    assert float((before - expected).abs().mean()) > 0.01, "the adapters change next to nothing"
    assert float((found - expected).abs().max()) < 1e-4


@pytest.mark.parametrize(
    ("tied", "kind", "settings", "message"),
    [
        pytest.param(True, "LoraConfig", {"target_modules": ["embed_tokens"]}, "adapters on embed_tokens of", id="e"),
        pytest.param(True, "LoraConfig", {"target_modules": ["lm_head"]}, "adapters on lm_head of", id="h"),
        pytest.param(
            True, "LoraConfig", {"target_modules": ["embed_tokens", "lm_head"]}, "embed_tokens and lm_head", id="eh"
        ),
        pytest.param(
            True, "LoraConfig", {"target_modules": QUERY, "modules_to_save": ["lm_head"]}, "on lm_head", id="whole-h"
        ),
        pytest.param(
            True,
            "LoraConfig",
            {"target_modules": QUERY, "modules_to_save": ["embed_tokens", "lm_head"]},
            "embed_tokens and lm_head",
            id="whole-eh",
        ),
        pytest.param(
            False,
            "LoraConfig",
            {"target_modules": QUERY, "trainable_token_indices": [3]},
            "trainable_token_indices",
            id="tokens",
        ),
        pytest.param(
            False, "LoraConfig", {"target_modules": QUERY, "alora_invocation_tokens": [3]}, "aLoRA", id="alora"
        ),
        pytest.param(False, "PromptTuningConfig", {"num_virtual_tokens": 4}, "PROMPT_TUNING are no weights", id="soft"),
    ],
)
def test_what_vllm_would_sample_otherwise_is_refused_in_words(
    tiny_policy: Callable[..., Path], tied: bool, kind: str, settings: dict[str, Any], message: str
) -> None:
    from ascent.rollout.weights.adapters import refuse_unmergeable

    with pytest.raises(InputError, match=message) as refused:
        refuse_unmergeable(adapted(tiny_policy(tied=tied, dtype="float32"), kind, **settings))
    assert "rollout.engine=transformers" in refused.value.mend


def test_a_model_without_adapters_passes(tiny_policy: Callable[..., Path]) -> None:
    from transformers import AutoModelForCausalLM

    from ascent.rollout.weights.adapters import refuse_unmergeable

    refuse_unmergeable(AutoModelForCausalLM.from_pretrained(tiny_policy()))


@pytest.mark.parametrize("targets", [["q_proj", "lm_head"], ".*(q_proj|lm_head)"])
def test_an_adapter_on_the_head_is_refused_in_words(targets: Any) -> None:
    from peft import LoraConfig

    from ascent.rollout.weights.adapters import refuse_head_adapter

    with pytest.raises(InputError, match="adapter on lm_head would never be trained"):
        refuse_head_adapter(LoraConfig(task_type="CAUSAL_LM", target_modules=targets))
    for harmless in (["q_proj"], "all-linear", None):
        refuse_head_adapter(LoraConfig(task_type="CAUSAL_LM", target_modules=harmless))
