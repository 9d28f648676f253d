"""The processes of one training, and the few words that they exchange besides tensors."""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather, gather_object
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

_made = itertools.count()
_LOOK_SECONDS = 0.2  # between two looks at the store, which is another process


class Ranks:
    """All ranks of this training; everything but `call` and `called` is collective.

    Collective calls are made by the main thread, in the same order on every rank. `called` may be asked in any thread.
    """

    def __init__(self, rank: int, count: int) -> None:
        """This process is number `rank` of `count`; accelerate has set up their group where there are several."""
        self.rank, self.count = rank, count
        self._number = next(_made)  # of this object in its process: the same on every rank
        self._meetings = 0  # collective calls so far: the same number on every rank
        self._store: Any = None
        self._looked_at = 0.0

    def max_over_ranks(self, number: int) -> int:
        """The largest of a number over all ranks."""
        self._meetings += 1
        if self.count == 1:
            return number
        return int(gather(torch.tensor([number], device=PartialState().device)).max())

    def any_rank(self, here: bool) -> bool:
        """Whether it is so on at least one rank."""
        return bool(self.max_over_ranks(int(here)))

    def exchange(self, thing: Any) -> list[Any]:
        """The things of all ranks, in the order of their numbers."""
        self._meetings += 1
        return [thing] if self.count == 1 else list(gather_object([thing]))

    def call(self, why: str) -> None:
        """Tell the others, who may be waiting for something else, that this rank goes to the next collective call."""
        if self.count > 1:
            self._words().set(self._key(why), "1")

    def called(self, *whys: str) -> str | None:
        """Which of these a rank has called before the next collective call, None for none. Asks five times a second at
        most, and says None in between."""
        if self.count == 1 or time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return None
        self._looked_at = time.monotonic()
        return next((why for why in whys if self._words().check([self._key(why)])), None)

    def _key(self, why: str) -> str:
        return f"{why}/{self._meetings}"

    def _words(self) -> Any:
        if self._store is None:
            self._store = PrefixStore(f"ascent/{self._number}", _get_default_store())
        return self._store
