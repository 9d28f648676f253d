"""The recorder of a training that keeps nothing, for benchmarks that look at some of what it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Unrecorded:
    """See `ascent.training.records.recorder.Recorder`."""

    tells_alarms: bool = False

    def sampled(self, done: int, total: int) -> None: ...

    def expect(self, programs: Any) -> None: ...

    def generation(self, number: int, records: Any) -> None: ...

    def settle(self) -> None: ...

    def take_signals(self) -> Sequence[Any]:
        """None: signals are of records."""
        return ()

    def next_evaluation(self) -> int:
        """Nothing is kept that has a number."""
        return 0

    def evaluation(self, record: Any, records: Any) -> None: ...

    def step(self, record: Any) -> Mapping[str, float] | None:
        """Nothing is found in it."""
        return None
