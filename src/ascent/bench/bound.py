"""What sampling can't take less than: from the lengths of the completions and the measured cost of a step.

With c(b) seconds for a step in which b completions get a token, at most N at a time, p seconds for each token of a
prompt that is computed, and completions of L_1, L_2, ... tokens:

    bound = max(sum of all L_i * min over b <= N of c(b) / b,  longest L_i * c(1))  +  p * prompt tokens

No order of the completions can be faster: a token costs at least the cheapest share of a step, and the longest
completion needs a step for each of its tokens. `in_order` is what these steps cost when the completions take N places
in the order in which they were submitted, each as soon as one is free: the best that an engine can do that doesn't know
the lengths.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True, slots=True)
class StepCost:
    """Measured: seconds of a step by how many completions get a token in it, in ascending order, from 1 to N; and
    seconds a computed token of a prompt."""

    steps: Mapping[int, float]
    prompt_token: float

    def of(self, rows: int) -> float:
        """Seconds of a step of `rows`; between two measured numbers of rows on the line between them."""
        return float(np.interp(rows, list(self.steps), list(self.steps.values())))


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds for all completions: in any order, and in the order in which they were submitted."""

    seconds: float
    in_order: float


def bound(lengths: Sequence[int], prompt_tokens: float, cost: StepCost, rows: int) -> Bound:
    """Of completions of these lengths, in their order, `rows` at a time. `prompt_tokens` are those that are computed,
    which is less than all where a prefix cache shares them."""
    prompts = prompt_tokens * cost.prompt_token
    cheapest = min(cost.of(each) / each for each in range(1, rows + 1))
    any_order = max(sum(lengths) * cheapest, max(lengths) * cost.of(1))
    in_order = sum(steps * cost.of(running) for running, steps in occupied(lengths, rows))
    return Bound(any_order + prompts, in_order + prompts)


def occupied(lengths: Sequence[int], rows: int) -> list[tuple[int, int]]:
    """(how many run, for how many steps), when each completion takes the first of `rows` places that is free."""
    free_at = [0] * rows
    begun: list[tuple[int, int]] = []
    for length in lengths:
        start = heapq.heappop(free_at)
        heapq.heappush(free_at, start + length)
        begun.append((start, start + length))
    changes: dict[int, int] = {}
    for start, end in begun:
        changes[start] = changes.get(start, 0) + 1
        changes[end] = changes.get(end, 0) - 1
    running, found = 0, []
    for now, following in pairwise(sorted(changes)):
        running += changes[now]
        found.append((running, following - now))
    return found


def static_steps(lengths: Sequence[int], rows: int) -> int:
    """How many steps batches of `rows` take that wait for their longest."""
    return sum(max(lengths[first : first + rows]) for first in range(0, len(lengths), rows))
