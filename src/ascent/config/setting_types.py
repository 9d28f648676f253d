"""What a value written in a configuration means for the setting that it is for.

YAML guesses the type of a word by its looks; the setting knows better. `1234567` is a number for `trainer.seed` and
text for `model.revision`, `yes` is true for a switch and a word for a name.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

import pydantic

from ascent.config.file import Source, Unreadable, number_of

Kinds = tuple[type, ...]  # simple types that a setting takes; (float, int) where it takes any number
_SWITCHES = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NULL = ("", "~", "null")


def settle(source: Source, values: dict[str, Any], prefix: str, known: Mapping[str, Kinds | None]) -> list[str]:
    """Replace each of `values`, which stand at `prefix` in `source`, by what is meant for its setting's kinds.

    Returns a sentence for each value that can't be read at all.
    """
    problems = []
    for name in list(values):
        key = f"{prefix}{name}"
        value = values[name] = _meant(values[name], source.texts.get(key), known.get(name))
        if isinstance(value, Unreadable):
            problems.append(f"{source.place(key)}: {value.why}")
            del values[name]
    return problems


def settle_sections(source: Source, model: type[pydantic.BaseModel]) -> list[str]:
    """`settle` for all sections that are themselves models. Returns a sentence for each value that can't be read, and
    for each switch where a number is expected, which pydantic would take for 0 or 1."""
    problems = []
    sections: list[tuple[str, Any, type[pydantic.BaseModel]]] = [("", source.values, model)]
    while sections:
        prefix, values, section = sections.pop()
        known: dict[str, Kinds | None] = {}
        for name, field in section.model_fields.items():
            inner = _model_in(field.annotation)
            known[name] = None if inner else kinds_of(field.annotation)
            if inner and isinstance(values.get(name), dict):
                sections.append((f"{prefix}{name}.", values[name], inner))
        problems += settle(source, values, prefix, known)
        problems += [
            f"{source.place(prefix + name)}: {prefix}{name}: expected {described(kinds)}, got {values[name]!r}"
            for name, kinds in known.items()
            if kinds is not None and isinstance(values.get(name), bool) and is_wrong(values[name], kinds)
        ]
    return problems


def is_wrong(value: Any, kinds: Kinds) -> bool:
    """Whether a setting of these kinds can't have the value."""
    return not (value is None and type(None) in kinds) and not _takes(value, kinds)


def described(kinds: Kinds) -> str:
    """The kinds in words, for error messages."""
    return " or ".join(dict.fromkeys("null" if kind is type(None) else kind.__name__ for kind in kinds))


def kinds_of(annotation: Any) -> Kinds | None:
    """The simple types of an annotation; None where it holds others."""
    origin = get_origin(annotation)
    found: Kinds | None
    if origin in (Union, types.UnionType):
        members = [kinds_of(member) for member in get_args(annotation)]
        found = None if None in members else tuple(kind for member in members for kind in member or ())
    elif origin is Literal:
        found = tuple(dict.fromkeys(type(member) for member in get_args(annotation)))
    elif origin in (list, dict):
        found = (origin,)
    else:
        found = (annotation,) if annotation in (str, int, float, bool, type(None), list, dict) else None
    return (*found, int) if found is not None and float in found and int not in found else found


def _meant(value: Any, text: str | None, kinds: Kinds | None) -> Any:
    """The value that a setting gets. `text` is how it is written, where that is without quotes; kinds that aren't known
    (None) get what YAML makes of it."""
    if kinds is None or (value is None and (text or "").lower() in _NULL):
        return value
    if value is not None and _takes(value, kinds):
        return value
    if str in kinds:
        return value if text is None else text
    if isinstance(value, str):
        if bool in kinds and value.strip().lower() in _SWITCHES:
            return _SWITCHES[value.strip().lower()]
        number = number_of(value) if int in kinds or float in kinds else None
        value = value if number is None else number
    if isinstance(value, float) and float not in kinds and int in kinds and value.is_integer():
        return int(value)  # 1e3
    return value


def _takes(value: Any, kinds: Kinds) -> bool:
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds)


def _model_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    members = (annotation, *get_args(annotation))
    return next((kind for kind in members if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)), None)
