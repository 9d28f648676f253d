"""Groups are scored beside sampling: in a thread of its own, as soon as all their completions are there.

The thread makes one call after the other, each for all groups that have become ready meanwhile: a reward that takes its
time, such as a judge on another machine, gets as much at once as there is. A group whose verdicts the sandbox still
owes would hold up the others, so a reward that says when its verdicts are there (`WatchedReward`) is called only then.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_LOOK_SECONDS = 0.005  # between two looks at what is awaited

Asked = TypeVar("Asked")
Result = TypeVar("Result")


class Scoring(Generic[Asked, Result]):
    """Work that a thread does on what is ready. Used by one thread at a time."""

    def __init__(self, do: Callable[[list[Asked]], Sequence[Result]], begin: Callable[[], None] = lambda: None) -> None:
        """`do` is the work on whatever is ready, with a result for each; `begin` is called first in the thread."""
        self._do, self._first = do, begin
        self._awaited: list[tuple[Asked, list[Callable[[], bool]]]] = []
        self._ready: queue.SimpleQueue[Asked | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Result | Exception] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, asked: Asked, ready: Sequence[Callable[[], bool]] = ()) -> None:
        """Work on this once all of `ready` are true."""
        self._awaited.append((asked, list(ready)))
        self._begin_ready()

    def take(self, *, wait: float = 0.0) -> list[Result]:
        """What has been done since the last call; waits so many seconds for something. Raises what work raised."""
        results: list[Result] = []
        until = time.monotonic() + wait
        while True:
            self._begin_ready()
            left = 0.0 if results else until - time.monotonic()
            try:
                done = self._done.get(timeout=min(left, _LOOK_SECONDS)) if left > 0 else self._done.get_nowait()
            except queue.Empty:
                if left <= 0:
                    return results
                continue
            if isinstance(done, Exception):
                raise done
            results.append(done)

    def close(self) -> None:
        """Begin nothing more; what is being done is not waited for."""
        self._awaited.clear()
        if self._thread is not None:
            self._ready.put(None)
            self._thread = None

    def _begin_ready(self) -> None:
        still = []
        for asked, ready in self._awaited:
            ready[:] = [each for each in ready if not each()]
            if ready:
                still.append((asked, ready))
            else:
                self._start()
                self._ready.put(asked)
        self._awaited = still

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ascent-scoring", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            self._first()
            while True:
                together = [self._ready.get()]
                with contextlib.suppress(queue.Empty):
                    while True:
                        together.append(self._ready.get_nowait())
                asked = [each for each in together if each is not None]
                for result in self._do(asked) if asked else ():
                    self._done.put(result)
                if len(asked) < len(together):
                    return
        except Exception as error:  # noqa: BLE001 - raised by the next `take`
            self._done.put(error)
