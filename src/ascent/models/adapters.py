"""LoRA adapters, as PEFT saves them: what a folder of them says, and which of them can be merged."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent.errors import InputError
from ascent.models.digests import weight_files

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PICKLED = "adapter_model.bin"
# What `merging` accounts for. Any other setting that is set is refused: it may change what the adapter means.
_UNDERSTOOD = {
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "exclude_modules", "fan_in_fan_out",
    "inference_mode", "layers_pattern", "layers_to_transform", "lora_alpha", "lora_bias", "lora_dropout",
    "modules_to_save", "peft_type", "peft_version", "r", "rank_pattern", "revision", "target_modules", "task_type",
    "use_dora", "use_rslora",
    # without effect on a saved adapter, or only beside another setting that is refused
    "megatron_core", "qalora_group_size", "runtime_config",
}  # fmt: skip
# These leave the base as it is; others train beside a base that they have changed.
_INITIALISATIONS = (True, False, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A folder with a LoRA adapter. `base` is the path or hub id of the model that it belongs to."""

    folder: Path
    base: str
    revision: str | None
    settings: dict[str, Any]


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter, and no whole model."""
    if not (folder / ADAPTER_CONFIG).is_file():
        return False
    whole = [file for file in weight_files(folder) if not file.name.startswith("adapter_")]
    return not ((folder / "config.json").is_file() and whole)


def read_adapter(folder: Path) -> Adapter:
    """What an adapter folder says. Raises InputError for an adapter that can't be merged into its base."""
    file = folder / ADAPTER_CONFIG
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: not readable JSON: {error}") from error
    if not isinstance(settings, dict):
        raise InputError(f"{file}: holds a {type(settings).__name__}, expected an object")
    _check_weights(folder)
    _check_settings(file, settings)
    base, revision = settings.get("base_model_name_or_path"), settings.get("revision")
    if not isinstance(base, str) or not base:
        raise InputError(
            f"{file}: it doesn't name its base model",
            "Set base_model_name_or_path to a folder or a hub id.",
        )
    return Adapter(folder, base, revision if isinstance(revision, str) else None, settings)


def _check_weights(folder: Path) -> None:
    if (folder / ADAPTER_WEIGHTS).is_file():
        return
    if (folder / _PICKLED).is_file():
        raise InputError(
            f"{folder}: its adapter is a pickle file ({_PICKLED}), which may run code when it is read",
            f"Convert it to {ADAPTER_WEIGHTS} where you trust it: load it with PEFT and save it again.",
        )
    raise InputError(f"{folder}: there is {ADAPTER_CONFIG}, but no {ADAPTER_WEIGHTS}")


def _check_settings(file: Path, settings: dict[str, Any]) -> None:
    kind, task = settings.get("peft_type"), settings.get("task_type")
    if kind != "LORA":
        raise InputError(f"{file}: peft_type={kind!r}: only LoRA adapters can be merged into a base model")
    if task not in (None, "CAUSAL_LM"):
        raise InputError(f"{file}: task_type={task!r}: expected CAUSAL_LM, the adapter of a language model")
    initialisation = settings.get("init_lora_weights", True)
    if initialisation not in _INITIALISATIONS:
        raise InputError(
            f"{file}: init_lora_weights={initialisation!r} changes the base's own weights, so base and adapter alone "
            "don't give the trained model",
            "Save it as a usual adapter first: PEFT's save_pretrained(path_initial_model_for_weight_conversion=...).",
        )
    unknown = sorted(name for name, value in settings.items() if value and name not in _UNDERSTOOD)
    unknown = [name for name in unknown if name != "init_lora_weights"]
    if unknown:
        raise InputError(
            f"{file}: {unknown[0]}={settings[unknown[0]]!r}: an adapter with this setting can't be merged here",
            "Merge it where it was trained, and give the merged model's folder.",
        )
