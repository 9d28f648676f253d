"""What a model's own files say, read with the standard library: architecture, positions, tokenizer,
template, weights.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Tokens that chat templates end a turn with, by what their own authors chose.
_TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|endofturn|>",
    "<｜end▁of▁sentence｜>",
    "<|user|>",
    "</s>",
)


class ModelError(ValueError):
    """A model can't be looked at: no such folder, or a file in it that isn't JSON. The message names it."""


@dataclass(frozen=True)
class Model:
    """The static facts of a model folder. Lengths in tokens, 0 where not stated; ``weights`` in bytes."""

    folder: Path
    architectures: tuple[str, ...] = ()
    positions: int = 0
    rope_scaled: bool = False
    head_size: int = 0
    vocabulary: int = 0
    quantised: str = ""
    custom_code: tuple[str, ...] = ()
    tokenizer_files: tuple[str, ...] = ()
    chat_template: str = ""
    end_tokens: Mapping[int, str] = field(default_factory=dict)
    eos_ids: tuple[int, ...] = ()
    eos_token: str = ""
    tokenizer_limit: int = 0
    weights: int = 0
    missing_shards: tuple[str, ...] = ()


def locate(name: str, hub_cache: Path | None = None) -> Path:
    """The folder of a model: a path, or a hub name that is in the local cache. Nothing is fetched.

    Raises ModelError when there is neither.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    home = os.environ.get("HF_HOME", str(Path.home() / ".cache/huggingface"))
    cache = hub_cache or Path(os.environ.get("HF_HUB_CACHE", os.path.join(home, "hub")))
    snapshots = cache / f"models--{name.strip('/').replace('/', '--')}" / "snapshots"
    found = sorted(snapshots.glob("*"), key=lambda folder: folder.stat().st_mtime) if snapshots.is_dir() else []
    if found:
        return found[-1]
    raise ModelError(
        f"no model {name!r}: neither a folder nor in the local cache {cache}; give a folder with config.json"
    )


def read(folder: Path) -> Model:
    """Read a model folder. Raises ModelError when config.json is missing or a file isn't JSON."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"no config.json in {folder}: not a model folder")
    config = _json(folder / "config.json")
    nested = config.get("text_config")
    text: Mapping[str, Any] = nested if isinstance(nested, dict) else config
    tokenizer = _json(folder / "tokenizer_config.json")
    generation = _json(folder / "generation_config.json")
    template = _template(folder, tokenizer)
    heads = _number(text, "num_attention_heads")
    head_size = _number(text, "head_dim") or (_number(text, "hidden_size") // heads if heads else 0)
    tokens = _added_tokens(folder, tokenizer)
    eos = generation.get("eos_token_id", config.get("eos_token_id"))
    weights, missing = _weights(folder)
    return Model(
        folder=folder,
        architectures=_names(config.get("architectures")),
        positions=_number(text, "max_position_embeddings")
        or _number(text, "model_max_length")
        or _number(text, "seq_length"),
        rope_scaled=bool(text.get("rope_scaling")),
        head_size=head_size,
        vocabulary=_number(text, "vocab_size"),
        quantised=_quantisation(config.get("quantization_config")),
        custom_code=tuple(
            name
            for name, content in (("config.json", config), ("tokenizer_config.json", tokenizer))
            if content.get("auto_map")
        ),
        tokenizer_files=tuple(sorted(file.name for file in folder.iterdir() if _is_tokenizer_file(file.name))),
        chat_template=template,
        end_tokens={number: token for number, token in tokens.items() if token in _TURN_ENDS and token in template},
        eos_ids=tuple(each for each in (eos if isinstance(eos, list) else [eos]) if isinstance(each, int)),
        eos_token=_token_text(tokenizer.get("eos_token")),
        tokenizer_limit=_limit(tokenizer.get("model_max_length")),
        weights=weights,
        missing_shards=missing,
    )


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text("utf-8"))
    except (ValueError, OSError) as error:
        raise ModelError(f"{file} isn't readable JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} holds a {type(content).__name__}, expected an object")
    return content


def _number(content: Mapping[str, Any], key: str) -> int:
    value = content.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _names(value: Any) -> tuple[str, ...]:
    return tuple(str(each) for each in value) if isinstance(value, list) else ()


def _quantisation(value: Any) -> str:
    return str(value.get("quant_method", "")) if isinstance(value, dict) else ""


def _limit(value: Any) -> int:
    # "No limit" is written as 1e30.
    return int(value) if isinstance(value, (int, float)) and 0 < value < 1e9 else 0


def _template(folder: Path, tokenizer: Mapping[str, Any]) -> str:
    stated = tokenizer.get("chat_template")
    if isinstance(stated, list):
        named = {each.get("name"): each.get("template", "") for each in stated if isinstance(each, dict)}
        stated = named.get("default") or next(iter(named.values()), "")
    if isinstance(stated, str) and stated:
        return stated
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8", errors="replace")
    other = _json(folder / "chat_template.json").get("chat_template")
    return other if isinstance(other, str) else ""


def _token_text(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _added_tokens(folder: Path, tokenizer: Mapping[str, Any]) -> dict[int, str]:
    decoder = tokenizer.get("added_tokens_decoder")
    if isinstance(decoder, dict) and decoder:
        return {int(number): _token_text(each) for number, each in decoder.items() if str(number).isdigit()}
    listed = _json(folder / "tokenizer.json").get("added_tokens")
    if isinstance(listed, list):
        return {
            each["id"]: str(each.get("content", ""))
            for each in listed
            if isinstance(each, dict) and isinstance(each.get("id"), int)
        }
    return {}


def _is_tokenizer_file(name: str) -> bool:
    return bool(re.fullmatch(r"tokenizer\.(json|model)|vocab\.(json|txt)|merges\.txt|.*\.tiktoken|spiece\.model", name))


def _weights(folder: Path) -> tuple[int, tuple[str, ...]]:
    """Bytes of the weight files that are there, and the shards that the index names and that aren't."""
    for pattern in ("*.safetensors", "pytorch_model*.bin", "*.gguf"):
        files = list(folder.glob(pattern))
        if files:
            break
    else:
        files = []
    missing: set[str] = set()
    for index in folder.glob("*.index.json"):
        mapping = _json(index).get("weight_map")
        if isinstance(mapping, dict) and files and index.name.startswith(files[0].name.split("-")[0].split(".")[0]):
            missing |= {str(shard) for shard in mapping.values() if not (folder / str(shard)).is_file()}
    return sum(file.stat().st_size for file in files), tuple(sorted(missing))
