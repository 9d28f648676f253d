"""Writes rollout files beside the training: packing and compressing a generation needs none of its thread's time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from ascent.errors import InputError
from ascent.tracking.rollouts import RolloutRecord, write_rollouts

_log = logging.getLogger(__name__)

Complete = Callable[[Sequence[RolloutRecord]], Sequence[RolloutRecord]]


class RolloutWriter:
    """One file at a time, in a thread of its own. Used by one thread.

    What was given to `write` is on disk once `settle` has returned, and not before: whoever counts it (a step's line, a
    checkpoint) settles first. A process that ends without a kill writes what it was given.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ascent-rollouts")  # started at the first write
        self._writing: tuple[Path, Future[None]] | None = None

    def write(self, path: Path, records: Sequence[RolloutRecord], complete: Complete = lambda records: records) -> None:
        """Begin to write a file, once the one before is there. `complete` is called in the thread and gives what is
        written. Raises what `settle` raises, of the one before."""
        self.settle()
        self._writing = path, self._thread.submit(lambda: write_rollouts(path, complete(records)))

    def beside(self, work: Callable[[], None]) -> None:
        """Do something in the thread, before what is written next. Nobody is told how it ended."""
        self._thread.submit(work)

    def settle(self) -> None:
        """Wait until everything is written. Raises InputError for a place that can't be written to."""
        if self._writing is None:
            return
        (path, written), self._writing = self._writing, None
        try:
            written.result()
        except OSError as error:
            raise InputError(
                f"the completions can't be written to {path}: {error.strerror or error}",
                f"Make room there (or mend what else is wrong), then: ascent train --resume {path.parent.parent}",
            ) from error

    def close(self) -> None:
        """Write what was given, after which nothing can be. That it can't be written is only told: nothing counts it,
        and the error that ends the training says more. Safe to call twice."""
        try:
            self.settle()
        except InputError as error:
            _log.warning("%s", error)
        self._thread.shutdown()
