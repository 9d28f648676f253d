"""Adapter folders where a model is asked for: merged into their base rightly, or refused in words."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ascent.errors import InputError
from ascent.models.adapter_base import EXPORT_FILE
from ascent.models.adapters import read_adapter
from ascent.models.digests import model_digest, weights_digest
from ascent.models.folder import base_of_adapter, model_folder, whole_model

pytestmark = pytest.mark.torch
TinyPolicy = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ascent"


def trained(base: Path, dtype: str, **settings: Any) -> Any:
    """A PEFT model on `base` whose trained tensors have all moved, as after a training."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, dtype))
    config = LoraConfig(task_type="CAUSAL_LM", r=4, **{"target_modules": "all-linear", **settings})
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model: Any = get_peft_model(loaded, config)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            scale = 0.5 if "lora_" in name else 0.05
            with torch.no_grad():
                parameter += (torch.randn(parameter.shape, generator=generator) * scale).to(parameter.dtype)
    return model.eval()


def log_probabilities(model: Any) -> Any:
    import torch

    ids = torch.tensor([[5, 70, 33, 200, 255, 12, 90, 41]])
    with torch.no_grad():
        return model(input_ids=ids).logits.float().log_softmax(-1)


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"k_proj": 4}},
    "dora": {"use_dora": True},
    "biases": {"bias": "all"},
    "head": {"modules_to_save": ["lm_head"]},
    "embedding-saved": {"modules_to_save": ["embed_tokens"]},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "head-adapted": {"target_modules": ["q_proj", "lm_head"]},
}


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_merged_model_is_the_trained_one(
    variant: str, tied: bool, dtype: str, tiny_policy: TinyPolicy, tmp_path: Path
) -> None:
    base = tiny_policy(tied=tied, dtype=dtype)
    model = trained(base, dtype, **VARIANTS[variant])
    model.save_pretrained(tmp_path / "adapter")
    merged = load(model_folder(str(tmp_path / "adapter")))
    assert str(merged.dtype) == f"torch.{dtype}"
    expected = log_probabilities(model)
    difference = (log_probabilities(merged) - expected).abs()
    moved = (log_probabilities(load(base)) - expected).abs()
    assert difference.mean() < (1e-4 if dtype == "float32" else 0.25) * moved.mean()
    assert moved.max() > 0.5, "the adapter does something"
    assert merged.config.tie_word_embeddings == (tied and not ("head" in variant or "embedding" in variant))


def test_merged_weights_are_those_that_training_samples_with(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    """Bit for bit, in bfloat16 too: added in the adapter's float32 and rounded once."""
    import torch

    from ascent.compat.lora_merge import merged_parameters

    model = trained(tiny_policy(dtype="bfloat16"), "bfloat16")
    model.save_pretrained(tmp_path / "adapter")
    merged = load(model_folder(str(tmp_path / "adapter"))).state_dict()
    sampled = dict(merged_parameters(model))
    for name, value in sampled.items():
        plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
        assert torch.equal(merged[plain], value), name


def test_merged_once_and_again_when_anything_changes(
    tiny_policy: TinyPolicy, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny_policy(), base)
    adapter = tmp_path / "adapter"
    trained(base, "float32").save_pretrained(adapter)
    folder = model_folder(str(adapter))
    assert folder.parent == cache
    assert "merging" in capsys.readouterr().err
    (folder / "mark").touch()
    assert model_folder(str(adapter)) == folder
    assert (folder / "mark").is_file(), "not made anew"
    assert "merging" not in capsys.readouterr().err
    assert (folder / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    (adapter / "tokenizer.json").write_text((base / "tokenizer.json").read_text())
    (adapter / "tokenizer_config.json").write_text('{"eos_token": "<pad>"}')
    other = model_folder(str(adapter))
    assert other != folder
    assert json.loads((other / "tokenizer_config.json").read_text()) == {"eos_token": "<pad>"}, "the adapter's own"
    (base / "generation_config.json").write_text('{"temperature": 0.5, "do_sample": false}')
    third = model_folder(str(adapter))
    assert third not in (folder, other)
    assert json.loads((third / "generation_config.json").read_text())["temperature"] == 0.5
    assert sorted(path.suffix for path in cache.iterdir() if path.name.startswith(".")) == [".lock"] * 3


def test_of_several_that_ask_at_once_one_merges(
    adapter: Path, tiny_policy: TinyPolicy, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what a killed one left is cleared away."""
    from ascent.models import merging

    made = []

    def slow_merge(_: Any, __: Path, folder: Path, dtype: str = "auto") -> None:
        folder.mkdir()  # fails when it is there
        time.sleep(0.2)
        made.append(folder)

    monkeypatch.setattr(merging, "merge", slow_merge)
    target = merging.merged_folder(read_adapter(adapter), tiny_policy(), cache)
    target.rename(cache / f".{target.name}.tmp")
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(merging.merged_folder, read_adapter(adapter), tiny_policy(), cache) for _ in range(4)]
        assert {each.result() for each in asked} == {target}
    assert len(made) == 2, "one before, one for all four"


def test_a_base_that_moved_along_or_is_named_relatively(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    here = tmp_path / "here"
    shutil.copytree(tiny_policy(), here / "base")
    trained(here / "base", "float32").save_pretrained(here / "adapter")
    edit(here / "adapter", base_model_name_or_path="../base")
    there = tmp_path / "there"
    here.rename(there)
    assert (model_folder(str(there / "adapter")) / "model.safetensors").is_file()
    assert base_of_adapter(there / "adapter").resolve() == there / "base"
    assert base_of_adapter(there / "base") == there / "base"


def test_a_hub_cache_that_is_gone_is_read_as_its_hub_id(
    tiny_policy: TinyPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None]] = []

    def from_hub(name: str, revision: str | None, *, fetch: bool) -> Path:
        assert fetch
        asked.append((name, revision))
        return tiny_policy()

    monkeypatch.setattr("ascent.models.folder._from_hub", from_hub)
    adapter = tmp_path / "adapter"
    trained(tiny_policy(), "float32").save_pretrained(adapter)
    edit(adapter, base_model_name_or_path="/gone/hub/models--Qwen--Qwen2.5-0.5B/snapshots/abc123")
    assert model_folder(str(adapter)).is_dir()
    edit(adapter, base_model_name_or_path="Qwen/Qwen2.5-0.5B", revision="main")
    assert model_folder(str(adapter)).is_dir()
    assert asked == [("Qwen/Qwen2.5-0.5B", "abc123"), ("Qwen/Qwen2.5-0.5B", "main")]
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"'Qwen/Qwen2.5-0.5B' isn't to be had\n.*nor in the local cache of the hub"):
        base_of_adapter(adapter)


def test_another_base_than_the_trained_one_is_refused(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    """The run's name for its base is used where the adapter's path is gone, and its digest is compared."""
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    shutil.copytree(tiny_policy(), base)
    trained(base, "float32").save_pretrained(adapter)
    edit(adapter, base_model_name_or_path="/gone")
    origin = {"base": {"name": str(base), "revision": None, "digest": weights_digest(base)}}
    (adapter / EXPORT_FILE).write_text(json.dumps(origin))
    assert model_folder(str(adapter)).is_dir()
    shutil.copyfile(tiny_policy(tied=False) / "model.safetensors", base / "model.safetensors")
    with pytest.raises(InputError, match="trained on other weights than those in"):
        model_folder(str(adapter))


def edit(adapter: Path, **changes: Any) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.fixture
def adapter(tiny_policy: TinyPolicy, tmp_path: Path) -> Path:
    trained(tiny_policy(), "float32").save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"base_model_name_or_path": "/gone/model"}, r"isn't to be had\n  model.path='/gone/model': no such folder"),
        ({"base_model_name_or_path": None}, "doesn't name its base model"),
        ({"base_model_name_or_path": "."}, "names its own folder"),
        ({"peft_type": "IA3"}, "only LoRA adapters"),
        ({"task_type": "SEQ_CLS"}, "expected CAUSAL_LM"),
        ({"init_lora_weights": "pissa"}, "changes the base's own weights"),
        ({"trainable_token_indices": [1, 2]}, "trainable_token_indices="),
        ({"ensure_weight_tying": True}, "ensure_weight_tying=True"),
        ({"layer_replication": [[0, 1]]}, "layer_replication="),
        ({"a_setting_of_tomorrow": 1}, "a_setting_of_tomorrow=1"),
        ({"r": 8}, "can't be loaded onto"),
        ({"target_modules": ["q_proj"]}, "has no place in the base model"),
        ({"modules_to_save": ["lm_head"]}, "can't be loaded onto"),
    ],
)
def test_refusals(changes: dict[str, Any], expected: str, adapter: Path, cache: Path) -> None:
    edit(adapter, **changes)
    with pytest.raises(InputError, match=expected):
        model_folder(str(adapter))
    assert not cache.exists() or not [path for path in cache.iterdir() if path.suffix != ".lock"]


def test_an_adapter_that_lacks_a_tensor_is_refused(adapter: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file({name: tensor for name, tensor in tensors.items() if name != min(tensors)}, file)
    with pytest.raises(InputError, match=r"1 tensors don't fit.*which is not in the adapter"):
        model_folder(str(adapter))


def test_pickled_and_absent_weights_are_refused(adapter: Path) -> None:
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(InputError, match="is a pickle file"):
        model_folder(str(adapter))
    (adapter / "adapter_model.bin").unlink()
    with pytest.raises(InputError, match=r"but no adapter_model.safetensors"):
        model_folder(str(adapter))
    (adapter / "adapter_config.json").write_text("{")
    with pytest.raises(InputError, match="not readable JSON"):
        model_folder(str(adapter))


def test_a_quantised_base_is_refused(adapter: Path, tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    base = tmp_path / "quantised"
    shutil.copytree(tiny_policy(), base)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    edit(adapter, base_model_name_or_path=str(base))
    with pytest.raises(InputError, match="quantised"):
        model_folder(str(adapter))


def test_a_merge_that_gives_another_model_is_refused(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascent.models.merging.merged_parameters", lambda model: iter(()))
    with pytest.raises(InputError, match="gives other probabilities than beside it"):
        model_folder(str(adapter))


def test_a_whole_model_is_itself(tiny_policy: TinyPolicy, tmp_path: Path) -> None:
    """Also with an adapter's files beside its own weights."""
    both = tmp_path / "both"
    shutil.copytree(tiny_policy(), both)
    (both / "adapter_config.json").write_text("{}")
    (both / "adapter_model.safetensors").touch()
    assert whole_model(both) == both
    assert model_digest(both) != weights_digest(both)
