"""The mean power of a device while something is measured."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from types import TracebackType

Watts = Callable[[], float | None]
_EVERY = 0.5  # seconds


class PowerMeter:
    """Asks `watts` twice a second, in a thread, while it is open. `mean` is None where it was never told."""

    def __init__(self, watts: Watts | None) -> None:
        self._watts = watts
        self._seen: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="power", daemon=True)

    def __enter__(self) -> PowerMeter:
        if self._watts is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._watts is not None:
            self._thread.join()

    @property
    def mean(self) -> float | None:
        """Watts."""
        return statistics.mean(self._seen) if self._seen else None

    def _ask(self) -> None:
        assert self._watts is not None
        while not self._over.wait(_EVERY):
            now = self._watts()
            if now is None:
                return
            self._seen.append(now)
