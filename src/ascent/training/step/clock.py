"""Where a step's wall time goes: phases that nest, each second counted once, for the innermost phase."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Literal

from ascent.types import StepTimes

Phase = Literal["generate", "reward_exposed", "logps", "update", "sync", "other"]


class StepClock:
    """Counts seconds of the phases of one step. `synchronize` waits for the device, so that a phase ends when its work
    does."""

    def __init__(
        self, synchronize: Callable[[], None] = lambda: None, left: Callable[[Phase], None] = lambda phase: None
    ) -> None:
        """`left` is told the phase that has ended, or that another one interrupts."""
        self._synchronize, self._left = synchronize, left
        self._stack: list[Phase] = ["other"]
        self._failed_in: Phase | None = None
        self._seconds: dict[Phase, float] = defaultdict(float)
        self._since = self._started = time.perf_counter()

    @contextlib.contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Count the time inside as `name`, less the phases that are entered within."""
        self._switch()
        self._stack.append(name)
        self._failed_in = None
        try:
            yield
        except BaseException:
            self._failed_in = self._failed_in or name
            raise
        finally:
            self._switch()
            self._stack.pop()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Count nothing of the time inside: for no phase, and not for the step."""
        self._switch()
        kept, since = dict(self._seconds), self._since
        try:
            yield
        finally:
            self._switch()
            self._seconds = defaultdict(float, kept)
            self._started += self._since - since

    @property
    def current(self) -> Phase:
        """The innermost phase; once an exception has left a phase, the innermost that it left."""
        return self._failed_in or self._stack[-1]

    def base(self, name: Phase) -> None:
        """What is counted from now on outside of all phases."""
        self._switch()
        self._stack[0] = name

    def finish_step(self, reward_total: float = 0.0) -> StepTimes:
        """The times since the last step ended; starts the next step."""
        self._switch()
        seconds, now = self._seconds, self._since
        step, self._started, self._seconds = now - self._started, now, defaultdict(float)
        return StepTimes(
            step=step,
            generate=seconds["generate"],
            reward_exposed=seconds["reward_exposed"],
            logps=seconds["logps"],
            update=seconds["update"],
            sync=seconds["sync"],
            other=seconds["other"],
            reward_total=reward_total,
        )

    def _switch(self) -> None:
        self._synchronize()
        self._left(self._stack[-1])
        now = time.perf_counter()
        self._seconds[self._stack[-1]] += now - self._since
        self._since = now
