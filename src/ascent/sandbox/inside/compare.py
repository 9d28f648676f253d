"""Is a returned value the expected one? Both are plain data here; see `values`."""

from __future__ import annotations

import json

from ascent.sandbox.inside.floats import FLOAT_TOLERANCE, differ_as_whole_numbers, near
from ascent.sandbox.inside.values import Opaque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any


def holds(check: Mapping[str, Any], got: Any) -> bool:
    """One check of a returned value. Modes: `strict` is exact types, `json` what JSON can tell apart, `equal`
    Python's own ==, `near` |got - expected| against a bound, `truth` the truth value, `is` identity with None,
    True or False. With `or_in_list` a list of nothing but the expected value holds as well."""
    if _holds(check, check["expected"], got):
        return True
    return check.get("or_in_list") is True and _holds(check, [check["expected"]], got)


def _holds(check: Mapping[str, Any], expected: Any, got: Any) -> bool:
    mode = check["mode"]
    if mode == "strict":
        return same(got, expected, check["tolerance"], check["unordered"])
    if mode == "json":
        return same_as_json(got, expected, check["tolerance"], check["unordered"])
    if mode == "equal":
        return bool(got == expected)
    if mode == "truth":
        return bool(got) is expected
    if mode == "is":
        return got is expected
    distance = abs(got - expected)
    return bool(distance < check["bound"] if check["open"] else distance <= check["bound"])


def same(got: Any, expected: Any, tolerance: float | None, unordered: bool) -> bool:
    """Exact types: bool isn't int, int isn't float, tuple isn't list. With a tolerance, numbers are compared
    by value, and may be off by it where a float is among them. NaN is what an expected NaN asks for.
    `unordered` compares lists and tuples as multisets, at every depth."""
    if isinstance(got, Opaque):
        return False
    if tolerance is not None and _is_number(got) and _is_number(expected):
        return _near(got, expected, tolerance)
    if type(got) is not type(expected):
        return False
    if isinstance(expected, float):
        return got == expected or (got != got and expected != expected)
    if isinstance(expected, complex):
        return same(got.real, expected.real, tolerance, False) and same(got.imag, expected.imag, tolerance, False)
    if isinstance(expected, (list, tuple)):
        if len(got) != len(expected):
            return False
        if unordered:
            return _same_multiset(got, expected, tolerance, unordered)
        return all(same(a, b, tolerance, unordered) for a, b in zip(got, expected, strict=True))
    if isinstance(expected, dict):
        return len(got) == len(expected) and _same_mapping(got, expected, tolerance, unordered)
    if isinstance(expected, (set, frozenset)):
        return len(got) == len(expected) and _same_multiset(list(got), list(expected), tolerance, unordered)
    return bool(got == expected)


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float


def _near(got: float, expected: float, tolerance: float) -> bool:
    if got == expected or (got != got and expected != expected):
        return True
    return (type(got) is float or type(expected) is float) and near(got, expected, tolerance)


def same_as_json(got: Any, expected: Any, tolerance: float | None, unordered: bool) -> bool:
    """What JSON can tell apart: a tuple is a list, a key is its text, 1 is 1.0 but not true. An expected float
    may be off by `tolerance` (None: `FLOAT_TOLERANCE`, but whole numbers are whole), an expected int never."""
    if isinstance(got, Opaque):
        return False
    if _is_number(expected):
        return _is_number(got) and _same_number(got, expected, tolerance)
    if isinstance(expected, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(expected):
            return False
        if unordered:
            return _matched(got, expected, lambda a, b: same_as_json(a, b, tolerance, unordered))
        return all(same_as_json(a, b, tolerance, unordered) for a, b in zip(got, expected, strict=True))
    if isinstance(expected, dict):
        if not isinstance(got, dict) or len(got) != len(expected):
            return False
        by_text = {_key_text(key): value for key, value in got.items()}
        return len(by_text) == len(got) and all(
            (text := _key_text(key)) in by_text and same_as_json(by_text[text], value, tolerance, unordered)
            for key, value in expected.items()
        )
    return same(got, expected, tolerance, unordered)


def _same_number(got: float, expected: float, tolerance: float | None) -> bool:
    if got == expected or (got != got and expected != expected):
        return True
    if type(expected) is int or (tolerance is None and differ_as_whole_numbers(got, expected)):
        return False
    return near(got, expected, FLOAT_TOLERANCE if tolerance is None else tolerance)


def _key_text(key: Any) -> str:
    """A dictionary's key as JSON writes it; two keys that JSON writes alike are one."""
    return key if isinstance(key, str) else json.dumps(key) if _is_plain(key) else f"\0{_key(key, False)}"


def _is_plain(key: Any) -> bool:
    return key is None or isinstance(key, (bool, int, float))


def _same_mapping(got: dict[Any, Any], expected: dict[Any, Any], tolerance: float | None, unordered: bool) -> bool:
    for key, value in expected.items():
        if key not in got or not same(got[key], value, tolerance, unordered):
            return False
    return _same_multiset(list(got), list(expected), None, False)


def _same_multiset(got: Sequence[Any], expected: Sequence[Any], tolerance: float | None, unordered: bool) -> bool:
    if tolerance is None:
        keys = sorted(_key(item, unordered) for item in got)
        return keys == sorted(_key(item, unordered) for item in expected)
    return _matched(got, expected, lambda a, b: same(a, b, tolerance, unordered))


def _matched(got: Sequence[Any], expected: Sequence[Any], alike: Callable[[Any, Any], bool]) -> bool:
    """Whether each item of `got` finds one of `expected` for itself."""
    left = list(expected)
    for item in got:
        place = next((at for at, other in enumerate(left) if alike(item, other)), None)
        if place is None:
            return False
        del left[place]
    return True


def _key(value: Any, unordered: bool) -> str:
    """Text that two values share exactly when `same` says so without tolerance."""
    kind = type(value).__name__
    if isinstance(value, (list, tuple, set, frozenset)):
        parts = [_key(item, unordered) for item in value]
        return f"{kind}({','.join(sorted(parts) if unordered or kind in ('set', 'frozenset') else parts)})"
    if isinstance(value, dict):
        return f"dict({','.join(sorted(f'{_key(k, False)}:{_key(v, unordered)}' for k, v in value.items()))})"
    if type(value) is int:
        return hex(value)
    return "0.0" if kind == "float" and value == 0 else f"{kind}:{value!r}"
