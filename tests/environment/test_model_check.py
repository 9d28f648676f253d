"""Models by their configuration alone, and a tiny real one where the training packages are installed."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.environment import model_check, model_files
from ascent.environment.finding import Finding
from ascent.environment.inventory import Environment, Host, NpuSmi, Package

QWEN_TOKENS = {"151643": "<|endoftext|>", "151644": "<|im_start|>", "151645": "<|im_end|>"}
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
QWEN25_7B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 131072,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rope_theta": 1000000.0,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN3_8B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "max_position_embeddings": 40960,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "vocab_size": 151936,
    "torch_dtype": "bfloat16",
}
BAICHUAN2_13B: dict[str, Any] = {
    "architectures": ["BaichuanForCausalLM"],
    "model_type": "baichuan",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 5120,
    "auto_map": {
        "AutoConfig": "configuration_baichuan.BaichuanConfig",
        "AutoModelForCausalLM": "modeling_baichuan.BaichuanForCausalLM",
    },
    "intermediate_size": 13696,
    "model_max_length": 4096,
    "num_attention_heads": 40,
    "num_hidden_layers": 40,
    "vocab_size": 125696,
    "torch_dtype": "bfloat16",
}
CPU = Environment(origin="machine", host=Host(memory_available=8 * 2**30))
NPU = Environment(origin="machine", npu=NpuSmi("read"))


def folder(
    path: Path, config: dict[str, Any], tokenizer: dict[str, Any], generation: dict[str, Any] | None = None
) -> Path:
    files = {
        "config.json": config,
        "tokenizer_config.json": tokenizer,
        "tokenizer.json": {},
        "generation_config.json": generation or {},
    }
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    return path


def qwen_tokenizer(eos: str) -> dict[str, Any]:
    tokens = {number: {"content": token} for number, token in QWEN_TOKENS.items()}
    return {
        "chat_template": CHATML,
        "eos_token": eos,
        "added_tokens_decoder": tokens,
        "model_max_length": 131072,
    }


def look(path: Path, environment: Environment = CPU, **options: Any) -> dict[str, list[Finding]]:
    _, found = model_check.check(path, environment, static_only=True, **options)
    by_rule: dict[str, list[Finding]] = {}
    for finding in found:
        by_rule.setdefault(finding.rule, []).append(finding)
    return by_rule


def test_qwen3_8b_is_fit_by_its_configuration(tmp_path: Path) -> None:
    path = folder(tmp_path, QWEN3_8B, qwen_tokenizer("<|im_end|>"), {"eos_token_id": [151645, 151643]})
    found = look(path, NPU, context=32768)
    assert not [each for group in found.values() for each in group if each.level in ("error", "warning")]
    assert any("supported by vLLM-Ascend" in each.what and each.level == "ok" for each in found["A701"])
    assert "40960" in found["A704"][0].what
    assert "<|im_end|>" in found["A703"][0].what


def test_qwen25_7b_base_stops_at_another_token_than_its_template(tmp_path: Path) -> None:
    path = folder(tmp_path, QWEN25_7B, qwen_tokenizer("<|endoftext|>"), {"eos_token_id": 151643})
    found = look(path, context=8192)
    (chat,) = found["A703"]
    assert chat.level == "warning"
    assert "151645" in chat.mend[0]
    assert found["A704"][0].level == "ok"


def test_baichuan2_13b_has_its_own_code_no_template_and_short_context(tmp_path: Path) -> None:
    tokenizer = {
        "auto_map": {"AutoTokenizer": ["tokenization_baichuan.BaichuanTokenizer", None]},
        "eos_token": {"content": "</s>"},
    }
    path = folder(tmp_path, BAICHUAN2_13B, tokenizer)
    found = look(path, NPU, context=8192)
    assert found["A704"][0].level == "error"
    assert "4096" in found["A704"][0].what
    assert found["A707"][0].level == "warning"
    assert found["A703"][0].level == "warning"
    assert any("experimental" in each.what for each in found["A701"])


def test_architecture_that_no_list_names_is_unknown_not_wrong(tmp_path: Path) -> None:
    found = look(folder(tmp_path, {"architectures": ["BrandNewForCausalLM"]}, {}), NPU)
    assert {each.level for each in found["A701"]} == {"note"}
    assert any("unknown" in each.what for each in found["A701"])


def test_architecture_without_support_is_an_error_on_npus_only(tmp_path: Path) -> None:
    path = folder(tmp_path, {"architectures": ["Llama4ForConditionalGeneration"]}, {})
    assert "error" in {each.level for each in look(path, NPU)["A701"]}
    assert "error" not in {each.level for each in look(path, CPU)["A701"]}


def test_narrow_heads_on_cpu(tmp_path: Path) -> None:
    path = folder(tmp_path, {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4}, {})
    assert look(path, CPU)["A708"][0].level == "error"
    assert "A708" not in look(path, NPU)


def test_missing_shards_and_tokenizer_are_named(tmp_path: Path) -> None:
    path = folder(tmp_path, QWEN3_8B, {})
    (path / "tokenizer.json").unlink()
    (path / "model-00001-of-00002.safetensors").write_bytes(b"0")
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    errors = [each for each in look(path)["A706"] if each.level == "error"]
    assert len(errors) == 2
    assert any("model-00002-of-00002.safetensors" in each.evidence for each in errors)


def test_quantised_weights_and_short_tokenizer_are_warned_of(tmp_path: Path) -> None:
    config = {**QWEN3_8B, "quantization_config": {"quant_method": "awq"}}
    path = folder(tmp_path, config, {**qwen_tokenizer("<|im_end|>"), "model_max_length": 4096})
    found = look(path, context=8192)
    assert any("awq" in each.what for each in found["A706"])
    assert any("4096" in each.what and each.level == "warning" for each in found["A704"])


@pytest.mark.parametrize("content", ["{", "[]", '"text"', ""])
def test_broken_configuration_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(model_files.ModelError, match=r"config\.json"):
        model_check.check(tmp_path, CPU, static_only=True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=60)
@given(
    config=st.dictionaries(st.sampled_from([*QWEN3_8B, "text_config", "quantization_config", "auto_map"]), JSON),
    tokenizer=st.dictionaries(
        st.sampled_from(["chat_template", "eos_token", "added_tokens_decoder", "model_max_length", "auto_map"]),
        JSON,
    ),
)
def test_no_json_makes_it_fail(config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        look(folder(Path(name), config, tokenizer, config), NPU, context=100)


def test_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(model_files.ModelError, match="neither a folder"):
        model_files.locate("nobody/nothing", tmp_path)
    with pytest.raises(model_files.ModelError, match=r"no config\.json"):
        model_files.read(tmp_path)


def test_hub_name_is_found_in_the_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--Qwen--Qwen3-8B/snapshots/abc"
    snapshot.mkdir(parents=True)
    assert model_files.locate("Qwen/Qwen3-8B", tmp_path) == snapshot


@pytest.mark.parametrize(
    ("ids", "level"),
    [
        ([7] * 24, "error"),
        ([7, 8] * 12, "warning"),
        ([], "warning"),
        (list(range(24)), "ok"),
        ([7, 7, 7], "ok"),
    ],
)
def test_what_a_sane_generation_is(ids: list[int], level: str) -> None:
    assert model_check.judge_generation(ids, "text").level == level


def test_helper_that_fails_or_hangs_says_why() -> None:
    assert model_check.ask("raise ValueError('no such tensor')", [], 20).problem == "ValueError: no such tensor"
    assert "0 s" in model_check.ask("import time; time.sleep(60)", [], 0.3).problem
    assert model_check.ask("print('noise'); print('ANSWER{\"a\": 1}'); print('noise')", [], 20).answer == {"a": 1}


def byte_tokenizer(path: Path) -> Path:
    """A tokenizer of single bytes, with which every text survives."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(path)
    return path


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Helpers get ten times longer: importing transformers takes long on a busy machine."""
    ask = model_check.ask
    monkeypatch.setattr(model_check, "ask", lambda program, arguments, seconds: ask(program, arguments, 10 * seconds))


@pytest.mark.torch
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("patient")
def test_real_tokenizer_is_tried(tmp_path: Path) -> None:
    """256 single bytes survive, but the model has embeddings for 100 of them only."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 100}
    (byte_tokenizer(tmp_path) / "config.json").write_text(json.dumps(config))
    environment = replace(CPU, packages={"transformers": Package("transformers", "5.0")})
    _, found = model_check.check(tmp_path, environment)
    tokenizer = {finding.level: finding.what for finding in found if finding.rule == "A702"}
    assert "survives" in tokenizer["ok"]
    assert "256 tokens" in tokenizer["error"]


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("patient")
def test_real_generation_is_judged(tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    LlamaForCausalLM(config).save_pretrained(byte_tokenizer(tmp_path))
    environment = replace(CPU, packages={"transformers": Package("transformers", "5.0")})
    _, found = model_check.check(tmp_path, environment)
    assert [finding.what for finding in found if finding.rule == "A705" and "failed" in finding.what] == []
    assert any(finding.rule == "A705" for finding in found)
