"""Waiting for what must come, however busy the machine is: a test that waits is not one that measures speed."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 120.0  # seconds; on a machine that does nothing else, what is waited for takes well under one


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Return as soon as `condition` holds; fail, saying `what` did not come, when it doesn't within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)
