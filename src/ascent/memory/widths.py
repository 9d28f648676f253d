"""Few different widths and numbers of rows, for devices where each new shape costs a slow step.

On NPU kernels and graphs are built anew for a shape that was not seen before. Widths are rounded up to four steps an
octave, so a width grows by less than a quarter, and 40 widths reach from 16 to 16384. Numbers of rows are rounded up to
two steps an octave (1, 2, 3, 4, 6, 8, 12, 16, ...): the rows that are added are empty, and what they cost is taken into
account where rows are cut into passes.
"""

from __future__ import annotations

_SMALLEST = 16
_STEPS = 4  # an octave


def bucket(n: int) -> int:
    """The smallest bucket of at least `n`: 16, then four equal steps from each power of two to the next."""
    if n <= _SMALLEST:
        return _SMALLEST
    step = max(1, (1 << (n - 1).bit_length() - 1) // _STEPS)
    return -(-n // step) * step


def few_rows(n: int) -> int:
    """The smallest number of rows of at least `n` (1 or more): a power of two, or one and a half times one."""
    power = 1 << (n - 1).bit_length()
    return power * 3 // 4 if power >= 4 and n <= power * 3 // 4 else power


def exact(n: int) -> int:
    """`n` itself: for devices to which one shape is as good as another."""
    return n
