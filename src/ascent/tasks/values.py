"""Python values in JSON: what JSON can't hold is written as an object with the single key `$tuple`, `$set`,
`$dict` or `$float`.

| Python | JSON |
|---|---|
| `(1, 2)` | `{"$tuple": [1, 2]}` |
| `{1, 2}` | `{"$set": [1, 2]}` |
| `{1: "a"}` (a key that is no string, or a lone key that starts with `$`) | `{"$dict": [[1, "a"]]}` |
| `inf`, `-inf`, `nan` | `{"$float": "inf"}`, `{"$float": "-inf"}`, `{"$float": "nan"}` |

All else is plain JSON: null, booleans, numbers (`1` is an int, `1.0` a float), strings, lists, objects with
string keys.
"""

from __future__ import annotations

import json
import math
from typing import Any

from ascent.tasks.rows import RowError, kind_of

_FLOATS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_MARKS = ("$tuple", "$set", "$dict", "$float")


def encode_value(value: Any) -> Any:
    """The JSON form of a plain Python value.

    Raises:
        TypeError: the value is none of None, bool, int, float, str, list, tuple, dict, set (or holds such a
            one).
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, list):
        return [encode_value(item) for item in value]
    if isinstance(value, tuple):
        return {"$tuple": [encode_value(item) for item in value]}
    if isinstance(value, set):
        items = [encode_value(item) for item in value]
        return {"$set": sorted(items, key=lambda item: (len(json.dumps(item)), json.dumps(item)))}
    if isinstance(value, dict):
        return _encode_dict(value)
    raise TypeError(
        f"a test value of type {type(value).__name__} can't be written; use None, bool, int, float, str, "
        "list, tuple, dict or set"
    )


def _encode_dict(value: dict) -> dict[str, Any]:
    lone_mark = len(value) == 1 and str(next(iter(value))).startswith("$")
    if all(isinstance(key, str) for key in value) and not lone_mark:
        return {key: encode_value(item) for key, item in value.items()}
    return {"$dict": [[encode_value(key), encode_value(item)] for key, item in value.items()]}


def decode_value(value: Any) -> Any:
    """The Python value that a JSON value stands for.

    Raises:
        RowError: an unknown `$` mark, a mark with the wrong content, or an element that can't be hashed.
    """
    if isinstance(value, list):
        return [decode_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((mark, content),) = value.items()
        if mark.startswith("$"):
            return _decode_mark(mark, content)
    return {key: decode_value(item) for key, item in value.items()}


def _decode_mark(mark: str, content: Any) -> Any:
    if mark not in _MARKS:
        raise RowError(
            f"unknown mark {mark!r}; known are {', '.join(_MARKS)} (an object whose only key is {mark!r} "
            f'is written {{"$dict": [["{mark}", ...]]}})'
        )
    if mark == "$float":
        if not isinstance(content, str) or content not in _FLOATS:
            raise RowError(f'\'$float\' takes "inf", "-inf" or "nan", not {content!r}')
        return _FLOATS[content]
    if not isinstance(content, list):
        raise RowError(f"{mark!r} takes a list, not {kind_of(content)}")
    items = [decode_value(item) for item in content]
    if mark == "$tuple":
        return tuple(items)
    try:
        return set(items) if mark == "$set" else _dict_from_pairs(items)
    except TypeError as error:
        raise RowError(f'in {mark!r}: {error} (use "$tuple" for what must be hashed)') from None


def _dict_from_pairs(items: list[Any]) -> dict[Any, Any]:
    for item in items:
        if not isinstance(item, list) or len(item) != 2:
            raise RowError("'$dict' takes a list of [key, value] pairs")
    return dict(items)
