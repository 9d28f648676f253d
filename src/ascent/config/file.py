"""Reads a configuration: YAML text and `key=value` overrides to a plain mapping, with the line of every key.

Words are read as YAML 1.2 does: `no`, `off`, `12:30` and dates are text, `010` is ten and `1e-5` a number. What a word
means for its setting is decided where the setting's type is known (`setting_types`), so its text is kept.
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
    """Safe YAML whose plain words are those of YAML 1.2, with digits grouped by `_` as before."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as the base class declares it


class _Dumper(yaml.SafeDumper):
    """Quotes what any version of YAML would take for something else than text."""


_DIGITS = r"[0-9][0-9_]*"
_WORDS = (
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", rf"[-+]?({_DIGITS}|0o[0-7_]+|0x[0-9a-fA-F_]+|0b[01_]+)", "-+0123456789"),
    (
        "float",
        rf"[-+]?({_DIGITS}\.[0-9_]*|\.{_DIGITS}|{_DIGITS}(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("merge", r"<<", "<"),
)
for _name, _pattern, _first in _WORDS:
    _word = re.compile(rf"^(?:{_pattern})$")
    _starts = ["" if character == "\0" else character for character in _first]
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", _word, _starts)
    if _name in ("int", "float"):
        _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", _word, _starts)


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    digits = loader.construct_scalar(node).replace("_", "")
    bases = {"0o": 8, "0x": 16, "0b": 2}
    return int(digits, bases.get(digits.lstrip("+-")[:2], 10))


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The value of an argument that is no YAML: only text for a setting that takes text."""

    why: str


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed configuration: its values, and where each dotted key stands (`file:line` or `key=value` argument).
    `texts` holds values as they are written, where that is without quotes."""

    values: dict[str, Any]
    origin: str
    places: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

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
    except ValueError as error:  # an integer of more digits than Python reads
        raise InputError(f"{path}: a number can't be read: {error}") from error
    if values is None:
        values, node = {}, None
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected a mapping of sections, got {type(values).__name__}")
    source = Source(values, str(path))
    if node is not None:
        _note_places(node, "", source)
    for name, section in (("", values), *values.items()):
        for key in section if isinstance(section, dict) else ():
            if not isinstance(key, str):
                place = source.place(f"{name}.{key}" if name else str(key))
                raise InputError(f"{place}: {key!r} is no name of a setting", "Names are text, such as trainer.seed.")
    for override in overrides:
        _override(source, override)
    return source


def of_arguments(values: dict[str, Any], overrides: Sequence[str]) -> Source:
    """A configuration without a file: `values` and the overrides. Raises InputError as `read` does."""
    source = Source(values, "the arguments")
    for override in overrides:
        _override(source, override)
    return source


def _note_places(node: yaml.Node, prefix: str, source: Source) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        key = f"{prefix}{key_node.value}"
        place = f"{source.origin}:{key_node.start_mark.line + 1}"
        if key in source.places:
            raise InputError(f"{place}: {key} is given twice (first at {source.places[key]})", "Keep one of them.")
        source.places[key] = place
        if _is_plain(value_node):
            source.texts[key] = value_node.value
        _note_places(value_node, f"{key}.", source)


def _is_plain(node: yaml.Node | None) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None


def _override(source: Source, override: str) -> None:
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not key:
        raise InputError(f"argument {override!r}: expected section.key=value, such as trainer.max_steps=3")
    value: Any
    try:
        value, node = yaml.load(text, Loader=_Loader), yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        value, node = Unreadable(f"the value is not valid YAML: {error}"), None
    put(source.values, key, value)
    source.places[key] = f"argument {override}"
    source.texts.pop(key, None)
    if not isinstance(node, yaml.ScalarNode) or _is_plain(node):  # for a setting that takes text, all of it is
        source.texts[key] = text.strip()


def number_of(text: str) -> int | float | None:
    """The number that text writes, as the configuration's numbers are written; None when it is none."""
    if text.strip().lower() in ("inf", "+inf", "-inf"):
        return float(text)
    try:
        value = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError):
        return None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def dump(values: Mapping[str, Any]) -> str:
    """YAML text that `read` and other readers of YAML take for the same values."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def put(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Set `values["a"]["b"]` for the key `a.b`, making sections as needed."""
    *sections, last = dotted.split(".")
    for section in sections:
        inner = values.get(section)
        if not isinstance(inner, dict):
            # `algorithm: gpro` is short for `algorithm: {name: gpro}`
            is_name = section == "algorithm" and isinstance(inner, str)
            inner = values[section] = {"name": inner} if is_name else {}
        values = inner
    values[last] = value


def get(values: Mapping[str, Any], dotted: str) -> Any:
    """The value at a dotted key, or None."""
    for part in dotted.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return None
        values = values[part]
    return values
