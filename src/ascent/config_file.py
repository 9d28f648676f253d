"""Reads a configuration: YAML text and `key=value` overrides to a plain mapping, with the line of every key.

YAML 1.1 reads `1e-5` as a string; here it is the number that everybody means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ascent.errors import InputError


class _Loader(yaml.SafeLoader):
    """Safe YAML with numbers such as 1e-5, and repeated keys refused."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed configuration: its values, and where each dotted key stands (`file:line` or `key=value` argument)."""

    values: dict[str, Any]
    origin: str
    places: dict[str, str] = field(default_factory=dict)

    def place(self, key: str) -> str:
        """Where `key`, or the nearest section above it, was given."""
        while key:
            if key in self.places:
                return self.places[key]
            key = key.rpartition(".")[0]
        return self.origin


def read(path: Path, overrides: Sequence[str] = ()) -> Source:
    """Parse the file and apply the overrides.

    Raises InputError when the file is missing or not a YAML mapping, when a key is repeated, or when an override is
    not of the form `section.key=value`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such file", "Give the path of a YAML configuration, such as one in examples/."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't be read: {error}") from error
    try:
        node = yaml.compose(text, Loader=_Loader)
        values = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not valid YAML: {error}") from error
    if values is None:
        values, node = {}, None
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected a mapping of sections, got {type(values).__name__}")
    places: dict[str, str] = {}
    if node is not None:
        _note_places(node, "", str(path), places)
    source = Source(values, str(path), places)
    for override in overrides:
        _override(source, override)
    return source


def _note_places(node: yaml.Node, prefix: str, path: str, places: dict[str, str]) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        key = f"{prefix}{key_node.value}"
        place = f"{path}:{key_node.start_mark.line + 1}"
        if key in places:
            raise InputError(f"{place}: {key} is given twice (first at {places[key]})", "Keep one of them.")
        places[key] = place
        _note_places(value_node, f"{key}.", path, places)


def _override(source: Source, override: str) -> None:
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not key:
        raise InputError(f"argument {override!r}: expected section.key=value, such as trainer.max_steps=3")
    try:
        value = yaml.load(text, Loader=_Loader) if text.strip() else None
    except yaml.YAMLError as error:
        raise InputError(f"argument {override!r}: the value is not valid YAML: {error}") from error
    put(source.values, key, value)
    source.places[key] = f"argument {override}"


def put(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Set `values["a"]["b"]` for the key `a.b`, making sections as needed."""
    *sections, last = dotted.split(".")
    for section in sections:
        inner = values.get(section)
        if not isinstance(inner, dict):
            inner = values[section] = {}
        values = inner
    values[last] = value


def get(values: Mapping[str, Any], dotted: str) -> Any:
    """The value at a dotted key, or None."""
    for part in dotted.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return None
        values = values[part]
    return values
