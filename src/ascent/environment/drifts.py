"""What a run's figures say of it that no line does: a loss that climbs, rewards without difference, slower steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from ascent.environment.metrics import LANGUAGE, Row

_FEWEST, _FEW = 4, 8
_CLIMB_OF_FEW, _CLIMB = 1.5, 1.3
_RISES = 0.85  # rank correlation with time
_LEAST_LOSS = 0.3
_SAME = 1e-9
_SAME_REWARDS = 5
_SLOWER, _LESS = 2.5, 0.4
_GROWS, _EVEN = 1.2, 0.5
_SHORTER = 0.1
_ENTROPY_RISES, _HIGH_ENTROPY = 5.0, 2.0


def read(rows: Sequence[Row]) -> dict[str, int]:
    """The readings that hold, each with the number of a line that shows it."""
    found: dict[str, int] = {}
    for name, line in (
        *_climbs(rows),
        *_no_difference(rows),
        *_not_finite(rows),
        *_slower(rows),
        *_memory(rows),
        *_lengths(rows),
        *_entropy(rows),
    ):
        found.setdefault(name, line)
    return found


def series(rows: Sequence[Row], name: str) -> list[tuple[int, float]]:
    """Line and value of one figure, without those that aren't numbers."""
    return [(number, row[name]) for number, row in rows if name in row and math.isfinite(row[name])]


def _climbs(rows: Sequence[Row]) -> Iterator[tuple[str, int]]:
    """A loss that rises from its lowest to the end, not just from one batch to the next."""
    every = series(rows, LANGUAGE)
    values = [value for _, value in every]
    smooth = [median(values[max(0, index - 2) : index + 1]) for index in range(len(values))]
    if len(values) >= 2 * _FEW:
        values = smooth
    if len(values) < _FEWEST:
        return
    lowest = min(range(len(values)), key=values.__getitem__)
    tail = values[lowest:]
    end = median(tail[-2:]) if len(tail) > _FEW else tail[-1]
    needed = _CLIMB_OF_FEW if len(tail) == _FEWEST else _CLIMB
    if len(tail) >= _FEWEST and tail[0] > _LEAST_LOSS and end > needed * tail[0] and _rises(tail):
        yield "loss-climbs", every[-1][0]


def _rises(values: Sequence[float]) -> bool:
    if len(values) < _FEW:
        return all(after > before for before, after in pairwise(values))
    order = sorted(range(len(values)), key=values.__getitem__)
    count = len(values)
    apart = sum((place - index) ** 2 for place, index in enumerate(order))
    return 1 - 6 * apart / (count * (count**2 - 1)) >= _RISES


def _no_difference(rows: Sequence[Row]) -> Iterator[tuple[str, int]]:
    """Advantages that are all 0, groups whose rewards are alike, a reward that never changes."""
    advantages = [(number, row) for number, row in rows if "advantage_max" in row and "advantage_min" in row]
    if advantages and all(abs(row["advantage_max"]) + abs(row["advantage_min"]) < _SAME for _, row in advantages):
        yield "reward-std-always-zero", advantages[0][0]
    spreads = series(rows, "reward_std")
    if len(spreads) > 1 and all(abs(value) < _SAME for _, value in spreads):
        yield "reward-std-always-zero", spreads[0][0]
    alike = series(rows, "all_alike")
    surely = len(alike) > 1 or (len(alike) == 1 and any(abs(value) < _SAME for _, value in spreads))
    if surely and all(value >= 1 for _, value in alike):
        yield "reward-std-always-zero", alike[0][0]
    rewards = series(rows, "reward")
    if len(rewards) >= _SAME_REWARDS and len({value for _, value in rewards}) == 1 and not spreads and not advantages:
        yield "reward-std-always-zero", rewards[0][0]


def stands_still(rows: Sequence[Row]) -> bool:
    """Whether every step's gradient is 0: a run that goes on like that does no work."""
    norms = series(rows, "grad_norm")
    return len(norms) > 1 and all(value == 0 for _, value in norms)


def _not_finite(rows: Sequence[Row]) -> Iterator[tuple[str, int]]:
    """A loss that isn't a number, a gradient that isn't at the end, steps that are skipped one after the other."""
    for name in ("loss", "policy_loss"):
        bad = [number for number, row in rows if name in row and math.isnan(row[name])]
        if bad:
            yield "loss-not-finite", bad[0]
    norms = [(number, row["grad_norm"]) for number, row in rows if "grad_norm" in row]
    if norms[-2:] and all(math.isnan(value) for _, value in norms[-2:]):
        yield "loss-not-finite", norms[-1][0]
    bad = [number for number, row in rows if row.get("nan_iterations", 0) > 0]
    if bad:
        yield "loss-not-finite", bad[0]
    skipped = [(number, row["skipped_iterations"]) for number, row in rows if "skipped_iterations" in row]
    if len(skipped) > _FEWEST and all(value > 0 for _, value in skipped[-_FEWEST:]):
        yield "loss-not-finite", skipped[-1][0]


def _slower(rows: Sequence[Row]) -> Iterator[tuple[str, int]]:
    for name in ("step_time", "throughput"):
        every = series(rows, name)
        values = [value for _, value in every]
        if len(values) < _FEW:
            continue
        before, end = median(values[: len(values) // 2]), values[-_FEWEST:]
        if before > 0 and (min(end) > _SLOWER * before if name == "step_time" else max(end) < _LESS * before):
            yield "gets-slower", every[-1][0]


def _memory(rows: Sequence[Row]) -> Iterator[tuple[str, int]]:
    for name in ("memory", "host_memory"):
        every = series(rows, name)
        changes = [after - before for (_, before), (_, after) in pairwise(every)]
        if len(changes) < _FEWEST or min(changes) < _EVEN * max(changes) or max(changes) <= 0:
            continue
        if every[-1][1] > _GROWS * every[0][1]:
            yield ("host-memory-grows" if name == "host_memory" else "memory-falls-steadily"), every[-1][0]


def _lengths(rows: Sequence[Row]) -> Iterator[tuple[str, int]]:
    """Completions that all have the greatest length, or have become very short."""
    both = [
        (number, row["length"], row["length_max"]) for number, row in rows if "length" in row and "length_max" in row
    ]
    if len(both) >= _FEWEST and all(mean >= most > 1 for _, mean, most in both):
        yield "completions-all-cut", both[0][0]
    every = series(rows, "length")
    values = [value for _, value in every]
    if len(values) >= _FEW and max(values[-_FEWEST:]) < _SHORTER * median(values[: len(values) // 2]):
        yield "length-collapsed", every[-1][0]


def _entropy(rows: Sequence[Row]) -> Iterator[tuple[str, int]]:
    every = series(rows, "entropy")
    values = [value for _, value in every]
    if len(values) >= _FEW:
        before, end = median(values[: len(values) // 2]), min(values[-_FEWEST:])
        if end > _HIGH_ENTROPY and 0 < before < end / _ENTROPY_RISES:
            yield "entropy-explodes", every[-1][0]
