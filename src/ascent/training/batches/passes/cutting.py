"""Rows, sorted by width, cut into forward passes so that padding and the passes' own cost are least together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ascent.memory.widths import exact

_LOOK_BACK = 512  # rows of one pass, at most: keeps the search linear in the rows


@dataclass(frozen=True, slots=True)
class Cut:
    """Neighbouring places of the sorted rows, the width that they are padded to, and how many rows that is with empty
    ones."""

    places: range
    width: int
    height: int


def cut_into_passes(
    widths: Sequence[int],
    per_width: Sequence[float] | None,
    price: Callable[[int, int], float],
    start: float,
    most_tokens: int | None,
    height: Callable[[int], int] = exact,
) -> list[Cut]:
    """The cheapest cut of rows sorted by falling `widths` into passes, each padded to its first row.

    A pass of some rows computes `height` of that number. It costs `start`, `price(height, width)`, and its width times
    the sum of its rows' `per_width`. A pass of more than one row has at most `most_tokens` tokens. Dynamic programming
    over the places of the cuts; a pass takes at most 512 rows.
    """
    best: list[float] = [0.0]
    origin: list[int] = [0]
    for end in range(1, len(widths) + 1):
        cheapest, at, extra = float("inf"), end - 1, 0.0
        for begin in range(end - 1, max(-1, end - 1 - _LOOK_BACK), -1):
            rows, width = height(end - begin), widths[begin]
            if rows > 1 and most_tokens is not None and rows * width > most_tokens:
                break
            extra += per_width[begin] if per_width is not None else 0.0
            cost = best[begin] + start + price(rows, width) + width * extra
            if cost < cheapest:
                cheapest, at = cost, begin
        best.append(cheapest)
        origin.append(at)
    cuts: list[Cut] = []
    end = len(widths)
    while end:
        cuts.append(Cut(range(origin[end], end), widths[origin[end]], height(end - origin[end])))
        end = origin[end]
    return cuts[::-1]
