"""The digests by which tests are named between a run and its judges, each computed once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from ascent.cluster.judging.messages import digest, dump_tests
from ascent.sandbox.types import Test

_MOST = 100_000  # sequences of tests


class TestDigests:
    """Tests may hold lists and can't be hashed, so a digest is remembered by the very objects, which are kept for it.
    May be used by several threads."""

    __test__ = False  # what its name says to pytest isn't meant

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, ...], tuple[tuple[Test, ...], str]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, tests: Sequence[Test]) -> tuple[tuple[Test, ...], str]:
        """The tests as they are kept, and their digest. Raises TypeError where a value isn't plain data."""
        key = tuple(map(id, tests))
        with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
        found = tuple(tests), digest(dump_tests(tests))
        with self._lock:
            self._known[key] = found
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        return found
