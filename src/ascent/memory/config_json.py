"""A model's dimensions out of its `config.json`: from a folder, the hub's local cache, or the list of known models.

`data/families.toml` says what distinguishes one architecture from another. Nothing is downloaded, and no package of
the training is imported.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ascent.errors import InputError
from ascent.memory.model import Experts, Latent, Model
from ascent.tables import nearest

NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
_LARGEST = {  # beyond these a number is a slip of the pen; the largest models known have a tenth
    "hidden_size": 2**18,
    "num_hidden_layers": 2000,
    "num_attention_heads": 4096,
    "num_key_value_heads": 4096,
    "intermediate_size": 2**21,
    "vocab_size": 2**24,
    "head_dim": 2**14,
}
_BY_HAND = "Give the dimensions by hand: --shape hidden_size=... num_hidden_layers=... (names of config.json)."


def read_model(name: str, revision: str | None = None) -> Model:
    """The model of a folder, of a hub id in the local cache, or of one of `known_models`.

    Raises InputError when there is none of that name, or its `config.json` doesn't give the dimensions.
    """
    folder = Path(name)
    if folder.is_file() and folder.suffix == ".json":
        return model_of(_load(folder), name=folder.parent.name or name, source=str(folder))
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise InputError(f"{name}: not a model folder (no config.json in it)")
        return model_of(_load(folder / "config.json"), name=name, source=str(folder / "config.json"))
    cached = _in_cache(name, revision)
    if cached is not None:
        return model_of(_load(cached), name=name, source=str(cached))
    known = known_models()
    if name in known:
        return model_of(known[name], name=name, source=f"the known dimensions of {name}")
    raise InputError(
        f"{name}: no folder, not in the local cache of the hub, and not a known model{nearest(name, known)}",
        f"Known: {', '.join(known)}. {_BY_HAND}",
    )


@cache
def known_models() -> dict[str, dict[str, Any]]:
    """Public models whose dimensions are kept here, under their hub ids: what their `config.json` says."""
    text = resources.files("ascent.memory").joinpath("data/models.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def families() -> dict[str, dict[str, Any]]:
    """What distinguishes each `model_type`."""
    text = resources.files("ascent.memory").joinpath("data/families.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def model_of(config: Mapping[str, Any], *, name: str, source: str) -> Model:
    """The model that a `config.json` describes; `source` names it in errors.

    Raises InputError for an architecture that isn't known, missing or absurd values, and contradictions among them.
    """
    kind = str(config.get("model_type", ""))
    family = _family(kind, config, source)
    missing = [key for key in NEEDED if config.get(key) is None]
    if missing:
        raise InputError(f"{source}: {', '.join(missing)} is missing" if len(missing) == 1 else
                         f"{source}: {', '.join(missing)} are missing", _BY_HAND)  # fmt: skip
    number = {key: _number(config, key, source) for key in _LARGEST if config.get(key) is not None}
    heads = number["num_attention_heads"]
    kv_heads = heads if family.get("kv_heads") == "all" else number.get("num_key_value_heads", heads)
    latent = _latent(config, source) if family.get("latent") else None
    if heads % kv_heads:
        raise InputError(f"{source}: num_attention_heads={heads} is no multiple of num_key_value_heads={kv_heads}")
    if "head_dim" not in number and latent is None and number["hidden_size"] % heads:
        raise InputError(
            f"{source}: hidden_size={number['hidden_size']} is no multiple of num_attention_heads={heads}, and there "
            "is no head_dim"
        )
    head_dim = number.get("head_dim", number["hidden_size"] // heads)
    window, windowed = _windows(config, family, number["num_hidden_layers"])
    bias = _bias(config, family)
    model = Model(
        name=name,
        architecture=kind,
        layers=number["num_hidden_layers"],
        hidden=number["hidden_size"],
        intermediate=number["intermediate_size"],
        vocabulary=number["vocab_size"],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        tied=bool(config.get("tie_word_embeddings", family.get("tied", False))),
        qkv_bias=bias[0],
        out_bias=bias[1],
        mlp_bias=bool(config.get("mlp_bias", False)),
        norms=family.get("norms", 2),
        head_norms=_head_norms(family, heads, kv_heads, head_dim),
        latent=latent,
        experts=_experts(config, family, number["num_hidden_layers"], source),
        window=window,
        windowed_layers=windowed,
        context=int(config.get("max_position_embeddings") or config.get("model_max_length") or 0),
    )
    return model


def _family(kind: str, config: Mapping[str, Any], source: str) -> dict[str, Any]:
    if any(str(layer).startswith("linear") for layer in config.get("layer_types") or ()):
        raise InputError(
            f"{source}: {kind or 'this model'} has layers of linear attention, whose memory this plan doesn't know",
            "Plan a model with attention in all layers.",
        )
    if isinstance(config.get("text_config"), Mapping) and kind not in families():
        raise InputError(
            f"{source}: {kind} is a language model with further parts, which this plan doesn't know",
            "For the language model alone, put what stands under text_config into a config.json of its own.",
        )
    if kind not in families():
        what = f"model_type={kind!r} is not known" if kind else "it names no model_type"
        raise InputError(
            f"{source}: {what}{nearest(kind, families()) if kind else ''}",
            f"Known: {', '.join(sorted(families()))}. If it is built like one of them, give that model_type: "
            "--shape model_type=llama hidden_size=...",
        )
    return families()[kind]


def _number(config: Mapping[str, Any], key: str, source: str) -> int:
    value = config[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST[key]:
        raise InputError(f"{source}: {key}={value!r}: expected a whole number from 1 to {_LARGEST[key]}")
    return value


def _bias(config: Mapping[str, Any], family: Mapping[str, Any]) -> tuple[bool, bool]:
    """Of queries, keys and values; of attention's output."""
    given = family.get("bias", "")
    if given == "qkv":
        return True, False
    has = bool(given and config.get(given, family.get("bias_default", False)))
    return has, has and not family.get("bias_without_out", False)


def _head_norms(family: Mapping[str, Any], heads: int, kv_heads: int, head_dim: int) -> int:
    return {"head": 2 * head_dim, "all": (heads + kv_heads) * head_dim}.get(family.get("head_norm", ""), 0)


def _latent(config: Mapping[str, Any], source: str) -> Latent:
    keys = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    missing = [key for key in keys if not isinstance(config.get(key), int)]
    if missing:
        raise InputError(f"{source}: {', '.join(missing)} missing, which latent attention needs", _BY_HAND)
    kv_rank, nope, rope, value = (int(config[key]) for key in keys)
    return Latent(config.get("q_lora_rank"), kv_rank, nope, rope, value)


def _experts(config: Mapping[str, Any], family: Mapping[str, Any], layers: int, source: str) -> Experts | None:
    keys = family.get("experts")
    count = keys and config.get(keys["count"])
    if not keys or not count:
        return None
    width, per_token = config.get(keys["intermediate"]), config.get("num_experts_per_tok")
    if not isinstance(width, int) or not isinstance(per_token, int):
        raise InputError(f"{source}: {keys['intermediate']} and num_experts_per_tok are needed for its experts")
    if not 1 <= per_token <= count:
        raise InputError(f"{source}: num_experts_per_tok={per_token} of {count} experts")
    if config.get("decoder_sparse_step", 1) not in (1, None):
        raise InputError(f"{source}: decoder_sparse_step={config['decoder_sparse_step']}: only 1 is known here")
    shared = int(config.get(keys.get("shared", ""), 0) or 0)
    shared += int(config.get(keys.get("shared_count", ""), 0) or 0) * width
    dense = int(config.get("first_k_dense_replace", 0) or 0) + len(config.get("mlp_only_layers") or ())
    gate, adapted = bool(keys.get("gate", False)), bool(keys.get("adapted", False))
    balanced = bool(keys.get("balanced", False)) and config.get("router_aux_loss_coef") != 0
    return Experts(count, per_token, width, shared, gate, min(dense, layers), adapted, balanced)


def _windows(config: Mapping[str, Any], family: Mapping[str, Any], layers: int) -> tuple[int | None, int]:
    """How far back layers with a window see, and how many these are."""
    window = config.get("sliding_window")
    if not isinstance(window, int) or window <= 0 or config.get("use_sliding_window") is False:
        return None, 0
    types = config.get("layer_types")
    if types:
        return window, sum(kind == "sliding_attention" for kind in types)
    if every := family.get("alternating") or config.get("sliding_window_pattern"):
        return window, layers - layers // int(every)
    if config.get("use_sliding_window"):
        return window, max(0, layers - int(config.get("max_window_layers", layers)))
    return window, layers


def _load(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: can't be read as JSON: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{path}: expected an object of settings, got a {type(config).__name__}")
    return config


def _in_cache(name: str, revision: str | None) -> Path | None:
    """`config.json` of a hub id in the local cache, whose layout is huggingface_hub's."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    folder = Path(os.environ.get("HF_HUB_CACHE", home / "hub")) / f"models--{name.replace('/', '--')}"
    reference = folder / "refs" / (revision or "main")
    commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision or ""
    file = folder / "snapshots" / commit / "config.json"
    return file if commit and file.is_file() else None
