"""How work grows with the tokens that it is about, counted and not timed."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass(frozen=True)
class Growth:
    """For each further token: lines of Python that were run (a loop runs one each time round) and functions called, and
    bytes that Python and NumPy held at once."""

    steps: float
    held: float


def growth(work: Callable[[int], Callable[[], object]], few: int = 500) -> Growth:
    """Compare `few` tokens with eight times as many. `work(tokens)` prepares what is then counted."""
    work(few)()  # imports, caches
    steps, held = zip(*(_count(work(tokens)) for tokens in (few, 8 * few)), strict=True)
    return Growth((steps[1] - steps[0]) / (7 * few), (held[1] - held[0]) / (7 * few))


def _count(call: Callable[[], object]) -> tuple[int, int]:
    steps = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += event == "line"
        return trace

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal steps
        steps += event in {"call", "c_call"}

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    tracemalloc.start()
    try:
        held_before = tracemalloc.get_traced_memory()[0]
        call()
        held = tracemalloc.get_traced_memory()[1] - held_before
    finally:
        tracemalloc.stop()
    return steps, held
