"""A model's dimensions: counted as transformers counts, and refused in words where config.json says too little."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ascent.errors import InputError
from ascent.memory import Penalty, Trained
from ascent.memory.config_json import families, known_models, model_of, read_model
from ascent.memory.phases import moved_parameters

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 96,
    "vocab_size": 300,
    "max_position_embeddings": 128,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_group": 1,
    "topk_group": 1,
}
MORE: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 80,
    },
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    **{kind: {"pad_token_id": 0} for kind in ("phi3", "glm", "glm4", "smollm3")},  # theirs is beyond 300
}
IN_TRANSFORMERS = sorted(set(families()) - {"baichuan"})  # whose code comes with its weights


def config_of(kind: str, **changed: Any) -> dict[str, Any]:
    return {**SMALL, **MORE.get(kind, {}), "model_type": kind, **changed}


def small(kind: str = "llama", **changed: Any) -> Any:
    return model_of(config_of(kind, **changed), name="small", source="config.json")


@pytest.mark.torch
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", IN_TRANSFORMERS)
def test_parameters_are_those_of_transformers(kind: str, tied: bool) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = config_of(kind, tie_word_embeddings=tied)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    assert small(kind, tie_word_embeddings=tied).parameters == sum(each.numel() for each in model.parameters())


@pytest.mark.torch
@pytest.mark.parametrize("which", ["all", "without_embeddings", "norms"])
@pytest.mark.parametrize("kind", IN_TRANSFORMERS)
def test_weights_that_gpro_moves_are_those_of_the_model(kind: str, which: Any) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from ascent.algorithms.gradient_penalty.parameters import moved_parameters as really_moved

    for tied in (True, False):
        config = config_of(kind, tie_word_embeddings=tied)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
        planned = moved_parameters(small(kind, tie_word_embeddings=tied), Trained(penalty=Penalty(which)))
        assert planned == sum(each.numel() for each in really_moved(model, which))


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["llama", "qwen3", "deepseek_v2", "qwen2_moe", "mixtral", "qwen3_moe"])
def test_adapters_are_those_of_peft(kind: str) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config_of(kind)))
        trained = get_peft_model(model, LoraConfig(r=5, target_modules="all-linear", task_type="CAUSAL_LM"))
    count = sum(each.numel() for each in trained.parameters() if each.requires_grad)
    assert small(kind).lora_parameters(5) == count


@pytest.mark.parametrize(
    ("name", "billions", "kv_kib"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 7.62, 56),
        ("Qwen/Qwen2.5-72B-Instruct", 72.7, 320),
        ("Qwen/Qwen3-30B-A3B", 30.5, 96),
        ("baichuan-inc/Baichuan2-13B-Chat", 13.9, 800),
        ("meta-llama/Llama-3.1-70B-Instruct", 70.6, 320),
        ("deepseek-ai/DeepSeek-V2-Lite-Chat", 15.7, 30.375),
    ],
)
def test_known_models_have_the_parameters_of_their_cards(name: str, billions: float, kv_kib: float) -> None:
    model = read_model(name)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.005)
    assert model.kv_bytes_per_token() / 1024 == kv_kib


def test_mixture_of_experts_uses_some_for_a_token() -> None:
    model = read_model("Qwen/Qwen3-30B-A3B")
    assert model.active_parameters / 1e9 == pytest.approx(3.35, rel=0.01)  # its card: 3.3
    assert small().active_parameters == small().parameters


def test_windows_bound_the_cache() -> None:
    gemma = read_model("google/gemma-2-9b-it")
    assert (gemma.window, gemma.windowed_layers) == (4096, 21)
    one = gemma.kv_bytes_per_token()
    assert gemma.kv_bytes(4096) == 4096 * one
    assert gemma.kv_bytes(8192) == (4096 + 2048) * one  # half of the layers keep only the window
    assert small("qwen2", sliding_window=8, use_sliding_window=False).windowed_layers == 0
    assert small("qwen2", sliding_window=8, use_sliding_window=True, max_window_layers=1).windowed_layers == 2
    assert small("mistral", sliding_window=8).windowed_layers == 3
    types = ["sliding_attention", "full_attention", "sliding_attention"]
    assert small("llama", sliding_window=8, layer_types=types).windowed_layers == 2


def test_tensor_parallel_deals_out_heads_and_pads_the_vocabulary() -> None:
    model = small(vocab_size=300)
    assert model.kv_bytes_per_token(tensor_parallel=2) * 2 == model.kv_bytes_per_token()
    assert model.kv_bytes_per_token(tensor_parallel=4) == model.kv_bytes_per_token(tensor_parallel=2)  # one head each
    assert model.padded_vocabulary() == 320
    assert model.padded_vocabulary(4) == 512
    latent = small("deepseek_v2")
    assert latent.kv_bytes_per_token(tensor_parallel=4) == latent.kv_bytes_per_token() == 3 * (24 + 16) * 2


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "lama"}, "model_type='lama' is not known; did you mean 'llama'?"),
        ({"model_type": ""}, "it names no model_type"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": None, "vocab_size": None}, "hidden_size, vocab_size are missing"),
        ({"hidden_size": 10**9}, "hidden_size=1000000000: expected a whole number from 1 to 262144"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0: expected a whole number"),
        ({"num_hidden_layers": True}, "num_hidden_layers=True: expected a whole number"),
        ({"vocab_size": "many"}, "vocab_size='many': expected a whole number"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4 is no multiple of num_key_value_heads=3"),
        ({"head_dim": None, "hidden_size": 66}, "hidden_size=66 is no multiple of num_attention_heads=4"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "layers of linear attention"),
        ({"model_type": "llava", "text_config": {"hidden_size": 64}}, "a language model with further parts"),
        ({"model_type": "qwen3_moe", "num_experts": 4}, "moe_intermediate_size and num_experts_per_tok are needed"),
        (
            {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 9, "moe_intermediate_size": 8},
            "num_experts_per_tok=9 of 4 experts",
        ),
        ({"model_type": "deepseek_v2"}, "kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim missing"),
    ],
)
def test_what_config_json_lacks_is_said(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        model_of({**SMALL, "model_type": "llama", **changed}, name="small", source="config.json")
    assert said in str(refused.value)
    assert "config.json" in str(refused.value)


def test_a_model_is_found_in_a_folder_the_cache_or_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(InputError, match="not a model folder"):
        read_model(str(folder))
    (folder / "config.json").write_text("[1]", "utf-8")
    with pytest.raises(InputError, match="expected an object of settings, got a list"):
        read_model(str(folder))
    (folder / "config.json").write_text("{", "utf-8")
    with pytest.raises(InputError, match="can't be read as JSON"):
        read_model(str(folder))
    (folder / "config.json").write_text(json.dumps(config_of("llama")), "utf-8")
    assert read_model(str(folder)).parameters == small().parameters
    cached = tmp_path / "hub/models--some--model"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs/main").write_text("abc\n", "utf-8")
    (cached / "snapshots/abc").mkdir(parents=True)
    (cached / "snapshots/abc/config.json").write_text(json.dumps(config_of("qwen3")), "utf-8")
    assert read_model("some/model").architecture == "qwen3"
    with pytest.raises(InputError, match=r"not a known model; did you mean 'Qwen/Qwen2\.5-7B-Instruct'"):
        read_model("Qwen/Qwen2.5-7B-Instrct")
    assert set(known_models()) > {"Qwen/Qwen2.5-7B-Instruct", "builtin:starter"}
