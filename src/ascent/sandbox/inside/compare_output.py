"""Is a program's standard output the expected one? Both are text here."""

from __future__ import annotations

import re
from decimal import Decimal, DecimalException

from ascent.sandbox.inside.floats import FLOAT_TOLERANCE, differ_as_whole_numbers, near

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_OF_LISTS = re.compile(r"([][(){},])")  # what Python prints between the items of a list
_LONGEST = 400


def same_output(got: str, expected: str, tolerance: float | None = None) -> bool:
    """Line by line and word by word. White space at the ends of lines, and blank lines before and after
    everything, don't count.

    Two words may differ where both are the same number, at least one of them written with a point or an
    exponent; also within a printed list. A number that is expected with a point or an exponent may be off by
    `tolerance` (None: `FLOAT_TOLERANCE`, but whole numbers are whole; 0: not at all); one that is expected as
    an integer must have that value.
    """
    got_lines, expected_lines = _lines(got), _lines(expected)
    if len(got_lines) != len(expected_lines):
        return False
    return all(
        a == b or _same_words(a.split(), b.split(), tolerance) for a, b in zip(got_lines, expected_lines, strict=True)
    )


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    first = next((at for at, line in enumerate(lines) if line), 0)
    return lines[first:]


def _same_words(got: list[str], expected: list[str], tolerance: float | None) -> bool:
    return len(got) == len(expected) and all(
        a == b or _same_word(a, b, tolerance) for a, b in zip(got, expected, strict=True)
    )


def _same_word(got: str, expected: str, tolerance: float | None) -> bool:
    if _same_number(got, expected, tolerance):
        return True
    parts, others = _OF_LISTS.split(got), _OF_LISTS.split(expected)
    if len(parts) != len(others) or len(parts) == 1:
        return False
    return all(a == b or _same_number(a, b, tolerance) for a, b in zip(parts, others, strict=True))


def _same_number(got: str, expected: str, tolerance: float | None) -> bool:
    if len(got) > _LONGEST or len(expected) > _LONGEST or not (_NUMBER.fullmatch(got) and _NUMBER.fullmatch(expected)):
        return False
    as_integer = _INTEGER.fullmatch(expected) is not None
    if as_integer and _INTEGER.fullmatch(got):
        return False  # two integers are the same only when they are written the same
    try:
        if Decimal(got) == Decimal(expected):
            return True
    except DecimalException:  # an exponent beyond all bounds
        return False
    value, wanted = float(got), float(expected)
    if as_integer or (tolerance is None and differ_as_whole_numbers(value, wanted)):
        return False
    return near(value, wanted, FLOAT_TOLERANCE if tolerance is None else tolerance)
