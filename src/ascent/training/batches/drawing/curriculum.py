"""Draws from the middle: tasks that were always or never solved lately are seldom drawn again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from ascent.training.batches.drawing.history import History
from ascent.training.batches.drawing.prompts import Drawn

_ENOUGH = 2  # groups that must agree before a task is passed over
_STILL = 4  # one in so many of its turns is drawn all the same, since the policy changes


def from_the_middle(history: History, task_of: Callable[[int], str], seed: int) -> Callable[[Drawn], bool]:
    """Whether a row suits: its last groups were not all solved or all unsolved, or it is its turn all the same, which
    is made of `seed`, its place and its index. `task_of` names the task of a row."""

    def suits(drawn: Drawn) -> bool:
        shares = history.shares.get(task_of(drawn.index), ())
        if len(shares) < _ENOUGH or set(shares) not in ({0.0}, {1.0}):
            return True
        turn = hashlib.sha256(f"turn/{seed}/{drawn.place}/{drawn.index}".encode()).digest()[0]
        return turn % _STILL == 0

    return suits
