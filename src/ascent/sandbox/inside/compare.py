"""Is a returned value the expected one? Both are plain data here; see `values`."""

from __future__ import annotations

import re

from ascent.sandbox.inside.values import Opaque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_STDOUT_TOLERANCE = 1e-9


def holds(check: Mapping[str, Any], got: Any) -> bool:
    """One check of a returned value. Modes: `strict` is exact types, `equal` Python's own ==, `near` |got -
    expected| against a bound, `truth` the truth value, `is` identity with None, True or False."""
    mode, expected = check["mode"], check["expected"]
    if mode == "strict":
        return same(got, expected, check["tolerance"], check["unordered"])
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
    by value. NaN is what an expected NaN asks for. `unordered` compares lists and tuples as multisets, at
    every depth."""
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
    if expected in (float("inf"), float("-inf")):
        return False
    try:
        return abs(got - expected) <= tolerance * max(1.0, abs(expected))
    except OverflowError:
        return False


def _same_mapping(got: dict[Any, Any], expected: dict[Any, Any], tolerance: float | None, unordered: bool) -> bool:
    for key, value in expected.items():
        if key not in got or not same(got[key], value, tolerance, unordered):
            return False
    return _same_multiset(list(got), list(expected), None, False)


def _same_multiset(got: Sequence[Any], expected: Sequence[Any], tolerance: float | None, unordered: bool) -> bool:
    if tolerance is None:
        keys = sorted(_key(item, unordered) for item in got)
        return keys == sorted(_key(item, unordered) for item in expected)
    left = list(expected)
    for item in got:
        place = next((at for at, other in enumerate(left) if same(item, other, tolerance, unordered)), None)
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


def same_output(got: str, expected: str) -> bool:
    """Line by line, trailing white space ignored; a line's tokens may differ where both are numbers of equal
    value, at least one of them written with a point or an exponent."""
    got_lines, expected_lines = _lines(got), _lines(expected)
    if len(got_lines) != len(expected_lines):
        return False
    return all(a == b or _same_tokens(a.split(), b.split()) for a, b in zip(got_lines, expected_lines, strict=True))


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _same_tokens(got: list[str], expected: list[str]) -> bool:
    return len(got) == len(expected) and all(a == b or _same_number(a, b) for a, b in zip(got, expected, strict=True))


def _same_number(got: str, expected: str) -> bool:
    if len(got) > 400 or len(expected) > 400 or not (_NUMBER.fullmatch(got) and _NUMBER.fullmatch(expected)):
        return False
    if not any(mark in got + expected for mark in ".eE"):
        return False  # two integers: the same only when written the same
    return _near(float(got), float(expected), _STDOUT_TOLERANCE)
