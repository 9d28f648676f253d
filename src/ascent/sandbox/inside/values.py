"""Values as data: JSON with a tag on everything that JSON lacks. Decoding builds plain built-in objects
only, so that nothing that a program returns can bring behaviour along.

    list ["l", ...]  tuple ["t", ...]  set ["s", ...]  frozenset ["f", ...]  dict ["d", key, value, ...]
    bytes ["b", hex]  large int ["i", hex]  complex ["c", re, im]  builtin type ["y", name]
    anything else: what `other` makes of it
"""

from __future__ import annotations

import builtins
import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_dumps = json.dumps
_SCALARS = frozenset({int, float, str, bool, type(None)})
_LARGE = 1 << 63
_BUILTIN_TYPES: dict[str, Any] = {name: kind for name, kind in vars(builtins).items() if type(kind) is type}
_BASES: tuple[Any, ...] = (int, float, str, bytes, list, tuple, dict, set, frozenset, complex, bytearray)


class Opaque:
    """A returned object that isn't plain data: equal to nothing. `truth` is what its program says of it."""

    __slots__ = ("kind", "truth")

    def __init__(self, kind: str, truth: bool) -> None:
        self.kind = kind
        self.truth = truth

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return self.truth

    def __repr__(self) -> str:
        return f"<{self.kind} object>"


class MalformedError(ValueError):
    """Bytes that no honest encoder writes."""


def encode(value: Any, other: Callable[[Any], list[Any]]) -> str:
    """JSON text for `value`; `other` answers a tagged list for what isn't plain data (or raises
    TypeError)."""
    return _dumps(_tagged(value, other))


def opaque(value: Any) -> list[Any]:
    """For `encode`, in a program's process: the name of the type and the truth value."""
    return ["o", type(value).__name__, bool(value)]


def refuse(value: Any) -> list[Any]:
    """For `encode`, where only plain data may be given. Raises TypeError."""
    expected = "None, bool, int, float, complex, str, bytes, list, tuple, dict, set"
    raise TypeError(f"a value in a test must be plain data ({expected}), not {type(value).__name__}")


def _tagged(value: Any, other: Callable[[Any], list[Any]]) -> Any:
    kind = type(value)
    if kind is int:
        return value if -_LARGE < value < _LARGE else ["i", hex(value)]
    if kind in _SCALARS:
        return value
    if kind is list:
        return ["l", *_items(value, other)]
    if kind is tuple:
        return ["t", *_items(value, other)]
    if kind is dict:
        return ["d", *[_tagged(side, other) for pair in value.items() for side in pair]]
    if kind is set or kind is frozenset:
        return ["s" if kind is set else "f", *_items(list(value), other)]
    if kind is bytes:
        return ["b", value.hex()]
    if kind is complex:
        return ["c", value.real, value.imag]
    if kind is type and value in _BUILTIN_TYPES.values():
        return ["y", value.__name__]
    return _subclass(value, kind, other)


def _items(values: Any, other: Callable[[Any], list[Any]]) -> Any:
    kinds = set(map(type, values))
    if kinds <= _SCALARS and (int not in kinds or all(-_LARGE < v < _LARGE for v in values if type(v) is int)):
        return values
    return [_tagged(item, other) for item in values]


def _subclass(value: Any, kind: type, other: Callable[[Any], list[Any]]) -> Any:
    """Named tuples, counters, enumerations of ints...: the data of their base, by the base's own methods."""
    base = next((base for base in _BASES if issubclass(kind, base)), None)
    if base is None:
        if kind.__module__ == "numpy" and hasattr(kind, "item") and not hasattr(kind, "__len__"):
            return _tagged(value.item(), other)
        return other(value)
    if base is dict:
        return _tagged(dict(dict.items(value)), other)
    if base is int:
        return _tagged(int.__int__(value), other)
    if base is float:
        return float.__float__(value)
    if base is str:
        return str.__str__(value)
    if base is complex:
        return ["c", float(complex.real.__get__(value)), float(complex.imag.__get__(value))]
    if base is bytes or base is bytearray:
        return other(value) if base is bytearray else ["b", bytes.hex(value)]
    return _tagged(base(base.__iter__(value)), other)


def decode(text: str | bytes, handle: Callable[[Any], Any] | None = None) -> Any:
    """The plain value of JSON text. `handle` turns the payload of an `["h", ...]` into an object. Raises
    MalformedError."""
    try:
        return _plain(json.loads(text), handle)
    except MalformedError:
        raise
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError) as error:
        raise MalformedError(f"not a value: {type(error).__name__}") from error


def _plain(node: Any, handle: Callable[[Any], Any] | None) -> Any:
    if not isinstance(node, list):
        if isinstance(node, dict):
            raise MalformedError("an object where a value was expected")
        return node
    tag, rest = node[0], node[1:]
    if tag in ("l", "t", "s", "f"):
        items = [_plain(item, handle) for item in rest] if any(type(item) in (list, dict) for item in rest) else rest
        return items if tag == "l" else {"t": tuple, "s": set, "f": frozenset}[tag](items)
    if tag == "d":
        flat = [_plain(item, handle) for item in rest]
        return dict(zip(flat[::2], flat[1::2], strict=True))
    if tag == "i":
        return int(str(rest[0]), 16)
    if tag == "b":
        return bytes.fromhex(rest[0])
    if tag == "c":
        return complex(rest[0], rest[1])
    if tag == "y":
        return _BUILTIN_TYPES[str(rest[0])]
    if tag == "o":
        return Opaque(str(rest[0])[:80], rest[1] is True)
    if tag == "h" and handle is not None:
        return handle(rest[0])
    raise MalformedError(f"unknown tag {str(tag)[:20]!r}")
