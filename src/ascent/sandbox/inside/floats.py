"""When a float is near enough to the one that was expected. Integers never come here: they are equal or not."""

from __future__ import annotations

FLOAT_TOLERANCE = 1e-6  # relative and absolute, where a test states none
_LAST_WITH_UNITS = 2.0**53  # beyond it neighbouring floats are more than 1 apart


def near(got: float, expected: float, tolerance: float) -> bool:
    """|got - expected| <= tolerance * max(1, |expected|). Infinities and NaN are near nothing else."""
    try:
        if abs(expected) == float("inf"):
            return False
        return abs(got - expected) <= tolerance * max(1.0, abs(expected))
    except OverflowError:  # an int that no float can hold
        return False


def differ_as_whole_numbers(got: float, expected: float) -> bool:
    """Whether both are whole numbers, different ones: 1000001.0 for 1000000.0 is a wrong count, not a rounding."""
    try:
        one, two = float(got), float(expected)
    except OverflowError:
        return False
    return one != two and one.is_integer() and two.is_integer() and abs(two) <= _LAST_WITH_UNITS
