"""The settings that `ascent tune` found, read from what it left behind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ascent.config import file as config_file
from ascent.errors import InputError
from ascent.tuning.space import KEYS

_SCHEMA = "ascent.tune/1"
_BESIDE = "tune.json"


@dataclass(frozen=True, slots=True)
class TunedSettings:
    """The configuration's keys (`rollout.max_num_seqs`) with their values, and variables of the engine's process."""

    keys: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def overrides(self) -> list[str]:
        """The keys as arguments of a command, `rollout.max_num_seqs=64`."""
        return [f"{key}={json.dumps(value)}" for key, value in self.keys.items()]


def read(path: Path) -> TunedSettings:
    """A configuration fragment (YAML), or a folder or tune.json of `ascent tune`, which tell variables too.

    Raises InputError for a file that is neither, or holds other keys than those of an engine.
    """
    if path.is_dir():
        path = path / _BESIDE
    if path.suffix == ".json":
        return _of_json(path)
    found = dict(_leaves(config_file.read(path, ()).values))
    _check(found, path)
    return TunedSettings(found)


def _of_json(path: Path) -> TunedSettings:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != _SCHEMA:
            raise ValueError(f"schema {content['schema']!r}, expected {_SCHEMA!r}")
        keys = dict(content["settings"])
        environment = {str(name): str(value) for name, value in dict(content["environment"]).items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: no settings of `ascent tune` can be read from it: {type(error).__name__}: {error}"
        ) from error
    _check(keys, path)
    return TunedSettings(keys, environment)


def _leaves(values: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        found += _leaves(value, f"{above}{name}.") if isinstance(value, dict) else [(f"{above}{name}", value)]
    return found


def _check(keys: Mapping[str, Any], path: Path) -> None:
    known = set(KEYS.values())
    others = [key for key in keys if key not in known]
    if others:
        raise InputError(
            f"{path}: {', '.join(others)}: not settings of an engine", f"Tuned are {', '.join(sorted(known))}."
        )
