"""TRL's metrics of several forward passes as those of one: each pass counts by what it was made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """What one pass was made of, over all ranks: tokens in the loss, rows, and rows that fill a rank's empty pass."""

    tokens: float
    rows: float
    fillings: float


_OF_SEQUENCES = {"vespo/phi_seq_mean"}  # always one value a sequence
_BY_LEVEL = {"clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio"}


def folded(
    passes: Sequence[Mapping[str, Sequence[float]]], sizes: Sequence[Size], *, per_sequence: bool
) -> dict[str, float]:
    """One value for each metric of TRL's loss.

    `passes` holds what each pass added, already of all ranks; `sizes` are those of the passes. With `per_sequence`
    importance ratios are one a sequence, and so are the clip ratios. Least and largest values stay what they are; what
    isn't a number counts for nothing.
    """
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for each in passes for name in each):
        values = [each[name][-1] if each.get(name) else math.nan for each in passes]
        known = [place for place, value in enumerate(values) if not math.isnan(value)]
        if not known:
            found[name] = math.nan
        elif name.endswith("_min"):
            found[name] = min(values[place] for place in known)
        elif name.endswith("_max"):
            found[name] = max(values[place] for place in known)
        else:
            by_rows = name in _OF_SEQUENCES or (per_sequence and name in _BY_LEVEL)
            sums = [_sum(name, values[place], sizes[place], by_rows=by_rows) for place in known]
            counted = sum(sizes[place].rows if by_rows else sizes[place].tokens for place in known)
            found[name] = sum(sums) / counted if counted else math.nan
    return found


def _sum(name: str, mean: float, size: Size, *, by_rows: bool) -> float:
    """What TRL's mean of one pass is the mean of. A filling row counts in it, with ratio 1: it isn't clipped."""
    if not by_rows:
        return mean * size.tokens
    return mean * (size.rows + size.fillings) - (size.fillings if name in _OF_SEQUENCES else 0.0)
