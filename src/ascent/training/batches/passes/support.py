"""For which models a layout of our own gives TRL's values, and why not for others.

A family stands in `FAMILIES` because a test compares it with TRL's own pass. What else decides is read off the config
and the modules: a model that isn't known to be exact is left to TRL's pass, with a reason that can be told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ascent.models.backbone import transformers_model
from ascent.training.batches.passes.masks import TAKE_MASKS
from ascent.training.dropout import chance

# Decoders whose attention depends on the distance of two positions only, and whose `forward` takes `position_ids` and a
# mask of four dimensions. (HunYuan isn't one: it scales queries and keys after their rotation.)
FAMILIES = frozenset(
    {
        *("llama", "mistral", "ministral", "arcee", "smollm3", "seed_oss", "helium", "granite"),
        *("qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "olmo", "olmo2", "cohere", "phi", "phi3"),
        *("starcoder2", "stablelm", "ernie4_5", "exaone4", "nemotron", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe"),
    }
)
# Kinds of attention that transformers names in `layer_types`.
_FULL, _SLIDING = "full_attention", "sliding_attention"
# Rotations that don't change with the length of the batch.
_FIXED_ROPE = frozenset({"default", "linear", "llama3", "yarn", "proportional"})
# Adapters that treat each token by itself.
_TOKENWISE = frozenset({"LORA", "ADALORA", "IA3", "LOHA", "LOKR", "VERA", "OFT", "BOFT"})


@dataclass(frozen=True, slots=True)
class Support:
    """Why something would not be exact, each; None where it is.

    `equal_rows`: computing equal rows once. `own_rows`: rows padded on the right. `sharing`: several completions after
    one prompt in a row. `caching`: completions after a prompt's keys and values. Each needs those before it.
    `window`: sharing is exact for sequences up to that length.
    """

    equal_rows: str | None = None
    own_rows: str | None = None
    sharing: str | None = None
    caching: str | None = None
    window: int | None = None


def support_of(model: torch.nn.Module) -> Support:
    """What is exact for a model as it is now (in training mode or not, with its present adapters), unwrapped."""
    base = transformers_model(model)
    config = base.config
    if reason := _chance(base) or _adapter(model) or _router_loss(config):
        return Support(reason, reason, reason, reason)
    if reason := _architecture(base):
        return Support(None, reason, reason, reason)
    window = _window(config)
    if reason := _masks(base):
        return Support(None, None, reason, reason, window)
    return Support(None, None, None, _caches(base, window), window)


def positions_are_relative(model: torch.nn.Module) -> bool:
    """Whether a row is known to be computed alike wherever it stands among the columns. TRL hands over no position ids,
    so learnt or absolute positions count the padding before a prompt."""
    return _architecture(transformers_model(model)) is None


def sharded(model: torch.nn.Module) -> bool:
    """Whether layers gather their weights from other ranks, so that all ranks must run them equally often."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    return any(isinstance(module, FSDPModule | FullyShardedDataParallel) for module in model.modules())


def flat_reason(model: torch.nn.Module) -> str | None:
    """Why passes are TRL's for a wrapped model of FSDP 1, else None."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    if isinstance(model, FullyShardedDataParallel):
        return (
            "FSDP 1 keeps weights in flat pieces, which a pass that isn't the model's own can't read (fsdp_version: 2)"
        )
    return None


def _chance(base: Any) -> str | None:
    """Dropout, noise and the like, where they are active."""
    reason = chance(base) if base.training else None
    return None if reason is None else f"{reason} is active: two rows that are equal would not be computed equally"


def _router_loss(config: Any) -> str | None:
    if getattr(config.get_text_config(), "output_router_logits", False):
        return "the router's loss is made of all tokens as TRL pads them (output_router_logits=True)"
    return None


def _adapter(model: Any) -> str | None:
    for name, settings in getattr(model, "peft_config", {}).items():
        kind = getattr(settings.peft_type, "value", settings.peft_type)
        if kind not in _TOKENWISE:
            return f"adapter {name} ({kind}) isn't known to treat each token by itself"
        if getattr(settings, "alora_invocation_tokens", None):
            return f"adapter {name} begins at a token of the sequence (alora_invocation_tokens)"
    return None


def _architecture(base: Any) -> str | None:
    config = base.config
    if config.get_text_config() is not config:
        return f"{config.model_type} takes more than text"
    if config.model_type not in FAMILIES:
        return f"model type {config.model_type} isn't among those that were compared with TRL's pass"
    kinds = set(getattr(config, "layer_types", None) or ()) - {_FULL, _SLIDING}
    if kinds or getattr(config, "attention_chunk_size", None):
        return f"layers of another kind than full attention: {', '.join(sorted(kinds)) or 'chunked attention'}"
    if others := sorted(set(_rope_types(config)) - _FIXED_ROPE):
        return f"rotary positions of type {others[0]} change with the length of the batch"
    if getattr(base, "_compiled_call_impl", None) is not None or hasattr(base.base_model, "_orig_mod"):
        return "the model is compiled"
    return None


def _rope_types(config: Any) -> Iterator[str]:
    """Types of rotary positions: in one dictionary, or in one for each kind of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        settings = getattr(config, name, None)
        if not isinstance(settings, Mapping):
            continue
        for entry in (settings, *settings.values()):
            if isinstance(entry, Mapping) and (kind := entry.get("rope_type") or entry.get("type")):
                yield str(kind)


def _window(config: Any) -> int | None:
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if window is None or getattr(config, "use_sliding_window", True) is False:
        return None
    return None if kinds is not None and _SLIDING not in kinds else int(window)


def _masks(base: Any) -> str | None:
    implementation = base.config._attn_implementation
    if implementation not in TAKE_MASKS:
        return f"attention {implementation} takes no mask of our own (those that do: {', '.join(TAKE_MASKS)})"
    return None


def _caches(base: Any, window: int | None) -> str | None:
    if window is not None:
        return "keys and values of layers with a sliding window aren't kept"
    if base.training and any(getattr(module, "gradient_checkpointing", False) for module in base.modules()):
        return "transformers keeps no keys and values with gradient checkpointing"
    if sharded(base):
        return "the weights are sharded: all ranks must run the layers equally often"
    return None
