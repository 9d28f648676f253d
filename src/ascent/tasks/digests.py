"""Digests of tasks: equal for equal tasks, in every process and release of Python."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from ascent.types import Task


def tasks_digest(tasks: Sequence[Task]) -> str:
    """SHA-256 of the tasks as they are asked and judged, in their order."""
    hashed = hashlib.sha256()
    for task in tasks:
        hashed.update(json.dumps(_plain(task)).encode() + b"\n")
    return f"sha256:{hashed.hexdigest()}"


def _plain(value: Any) -> Any:
    """The same for equal values in every process: JSON's types, everything else by the name of its type."""
    if is_dataclass(value):
        return [type(value).__name__, {each.name: _plain(getattr(value, each.name)) for each in fields(value)}]
    if isinstance(value, Mapping):
        return ["dict", sorted(json.dumps([_plain(key), _plain(each)]) for key, each in value.items())]
    if isinstance(value, set | frozenset):
        return ["set", sorted(json.dumps(_plain(each)) for each in value)]
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, str | int | float) else [type(value).__name__, repr(value)]
