"""Base model and LoRA adapter made into one model, whose weights are what the adapter's training sampled with."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from ascent.compat.lora_merge import adds_up, merged_parameters
from ascent.errors import InputError
from ascent.models.adapters import ADAPTER_WEIGHTS, Adapter
from ascent.models.digests import TOKENIZER_FILES, matching, model_digest

_FORMAT = 1  # raise it when the same adapter gives other files
_LARGEST_SHIFT = {"torch.float32": 1e-3}  # of probability, between adapter beside base and merged; others: 0.1
_HALF_SHIFT = 0.1


def merged_folder(adapter: Adapter, base: Path, cache: Path) -> Path:
    """The merged model, in the base's own dtype: made once, then found under `cache` by the contents of both.

    Several processes may ask at once: one makes it, the others wait. Raises InputError as `merge` does.
    """
    content = [_FORMAT, model_digest(adapter.folder), model_digest(base)]
    name = f"merged-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]}"
    folder, beside = cache / name, cache / f".{name}.tmp"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            print(f"merging {adapter.folder} into {base} (once, kept in {folder})", file=sys.stderr, flush=True)
            shutil.rmtree(beside, ignore_errors=True)  # of a process that was killed
            try:
                merge(adapter, base, beside)
                beside.rename(folder)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
    return folder


def merge(adapter: Adapter, base: Path, folder: Path, dtype: str = "auto") -> None:
    """Write base and adapter as one model into `folder`, which is made: safetensors, configuration and tokenizer.

    Weights are added in the adapter's precision and rounded once to `dtype` ("auto": the base's own). The result is
    compared with the adapter beside its base, and InputError raised when it computes something else; also when the
    two don't fit together.
    """
    try:
        model = _load(adapter, base, dtype)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError) as error:
        raise InputError(f"{adapter.folder}: can't be loaded onto {base}: {_first_line(error)}") from error
    before = _probabilities(model)
    if adds_up(model):
        for name, value in merged_parameters(model):
            model.get_parameter(name).data = value
        merged = model.unload()
    else:
        merged = model.merge_and_unload(safe_merge=True)
    _check_same(adapter, before, _probabilities(merged), merged.dtype)
    _write(merged, adapter, base, folder)


def _load(adapter: Adapter, base: Path, dtype: str) -> Any:
    """The PEFT model, on the CPU, every tensor of the adapter's file in its place."""
    import torch
    from peft import PeftModel
    from safetensors import safe_open
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(base, trust_remote_code=False)
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError("the base's weights are quantised; an adapter can be merged into unquantised weights only")
    kind = dtype if dtype == "auto" else getattr(torch, dtype)
    loaded: Any = AutoModelForCausalLM.from_pretrained(base, config=config, dtype=kind, trust_remote_code=False)
    with safe_open(adapter.folder / ADAPTER_WEIGHTS, framework="pt") as file:
        keys = set(file.keys())
    if config.get_text_config().tie_word_embeddings and _touches_embeddings(loaded, keys):
        _untie(loaded)  # in training the adapter changed one of the two alone
    model = PeftModel.from_pretrained(loaded, str(adapter.folder))
    _check_keys(model, keys)
    return model.eval()


def _check_keys(model: Any, keys: set[str]) -> None:
    """PEFT only warns of tensors that it has no place for, or lacks: such a model isn't the trained one."""
    from peft import get_peft_model_state_dict

    placed = set(get_peft_model_state_dict(model, save_embedding_layers=True))
    needed = set(get_peft_model_state_dict(model, save_embedding_layers=False))
    for wrong, what in ((keys - placed, "has no place in the base model"), (needed - keys, "is not in the adapter")):
        if wrong:
            raise ValueError(f"{len(wrong)} tensors don't fit, such as {min(wrong)}, which {what}")


def _touches_embeddings(model: Any, keys: set[str]) -> bool:
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    names = [name for name, module in model.named_modules() if any(module is end for end in ends)]
    return any(f".{name}." in key for name in names for key in keys)


def _untie(model: Any) -> None:
    """Give the output embedding weights of its own, with the same values."""
    import torch

    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False


def _probabilities(model: Any) -> Any:
    """Of the next token after each of 16 that lie all over the vocabulary: (16, V), float32."""
    import torch

    vocabulary = int(model.config.get_text_config().vocab_size)
    ids_1T = torch.arange(16)[None] * max(1, vocabulary // 16) % vocabulary
    with torch.no_grad():
        return model.eval()(input_ids=ids_1T).logits[0].float().softmax(-1)


def _check_same(adapter: Adapter, before_TV: Any, after_TV: Any, dtype: Any) -> None:
    shifted = float((before_TV - after_TV).abs().sum(-1).max()) / 2
    if not shifted <= _LARGEST_SHIFT.get(str(dtype), _HALF_SHIFT):  # not a number isn't, either
        raise InputError(
            f"{adapter.folder}: merged into its base it gives other probabilities than beside it "
            f"({shifted:.2g} of the probability shifts in {dtype})",
            "Merge it where it was trained, and give the merged model's folder.",
        )


def _write(model: Any, adapter: Adapter, base: Path, folder: Path) -> None:
    from transformers import GenerationConfig

    generation = base / "generation_config.json"
    if generation.is_file():
        model.generation_config = GenerationConfig()  # transformers refuses to save some that it loads
    model.save_pretrained(folder)
    if generation.is_file():
        shutil.copyfile(generation, folder / generation.name)
    files = matching(adapter.folder, TOKENIZER_FILES) or matching(base, TOKENIZER_FILES)
    for file in files:
        shutil.copyfile(file, folder / file.name)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no reason given').splitlines()[0]}"
