"""The order in which prompts are drawn when groups without signal are replaced, and the place in it.

TRL's dataloader can't be asked for more than a generation, and a resumed Trainer skips what it counts in batches. So
prompts come from an order of our own, one place after the other; the next place is all that a checkpoint needs.

An example: five rows, two ranks. Each pass over the rows has an order of its own, made of the seed.

    pass 0: 3 0 4 1 2    pass 1: 1 4 0 2 3    ...
    place            0  1  2  3  4
    rank 0           3  4  2  4  2
    rank 1           0  1  1  0  3
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import torch


@dataclass(frozen=True, slots=True)
class Drawn:
    """A row of the dataset by its `index`, and the `place` in a rank's order at which it stands."""

    place: int
    index: int


class PromptOrder:
    """A rank's order of the rows of a dataset, without an end."""

    def __init__(self, rows: int, *, rank: int, ranks: int, seed: int, shuffle: bool) -> None:
        """`rows` is how many the dataset has, at least one. All ranks together draw each row once in a pass."""
        self.rows, self.rank, self.ranks = rows, rank, ranks
        self._seed, self._shuffle = seed, shuffle
        self._orders: dict[int, list[int]] = {}  # of the last passes that were looked at

    def at(self, place: int) -> int:
        """The index of the row at a place."""
        number, within = divmod(place * self.ranks + self.rank, self.rows)
        return self._order(number)[within] if self._shuffle else within

    def following(self, place: int, wanted: int, suits: Callable[[Drawn], bool] | None = None) -> list[Drawn]:
        """The next rows from `place` on that suit, `wanted` of them. After as many places as the dataset has rows
        without one of them the next row suits."""
        found: list[Drawn] = []
        last = place - 1
        for at in count(place):
            if len(found) == wanted:
                break
            drawn = Drawn(at, self.at(at))
            if suits is None or at - last > self.rows or suits(drawn):
                found.append(drawn)
                last = at
        return found

    def passes(self, place: int) -> float:
        """How often the whole dataset has been drawn when every rank stands at this place."""
        return place * self.ranks / self.rows

    def _order(self, number: int) -> list[int]:
        if number not in self._orders:
            digest = hashlib.sha256(f"prompts/{self._seed}/{number}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:6]))
            for old in sorted(self._orders)[:-1]:
                del self._orders[old]
            self._orders[number] = torch.randperm(self.rows, generator=generator).tolist()
        return self._orders[number]
