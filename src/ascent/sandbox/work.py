"""The programs that wait for a slot, and the counters that slot threads share."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

from ascent.sandbox.errors import SandboxClosedError
from ascent.sandbox.judge import Plan
from ascent.sandbox.types import Limits, Program, Verdict


@dataclass(slots=True)
class Job:
    """A program to be judged; `submitted` is in seconds of `time.monotonic()`."""

    program: Program
    plan: Plan
    limits: Limits
    future: Future[Verdict]
    submitted: float


class Work:
    """Two queues, of which the second waits for the first, and counters. It doesn't know the Sandbox, so that a
    forgotten one can end. Whoever reads counters, or clears, holds `changed`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._later: deque[Job] = deque()
        self.closed = False
        self.cores: tuple[int, ...] = ()  # for slots; empty: those that they have
        self.running = self.finished = self.infrastructure_errors = self.restarts = self.most_queued = 0
        self.busy = self.queued = self.exposed = 0.0

    def waiting(self) -> int:
        """How many programs wait for a slot."""
        return len(self._jobs) + len(self._later)

    def put(self, job: Job, *, later: bool = False) -> None:
        """Add a program. Raises SandboxClosedError."""
        with self.changed:
            if self.closed:
                raise SandboxClosedError("the sandbox is closed")
            (self._later if later else self._jobs).append(job)
            self.most_queued = max(self.most_queued, self.waiting())
            self.changed.notify()

    def take(self) -> Job | None:
        """The next program, or None when the sandbox closes. Waits for one."""
        with self.changed:
            while True:
                if self.closed:
                    return None
                if self.waiting():
                    job = (self._jobs or self._later).popleft()
                    if job.future.set_running_or_notify_cancel():
                        self.running += 1
                        self.queued += time.monotonic() - job.submitted
                        return job
                    continue
                self.changed.wait()

    def done(self, seconds: float, restarts: int, infrastructure_error: bool) -> None:
        """Count a program that was judged, or could not be."""
        with self.changed:
            self.running -= 1
            self.finished += 1
            self.busy += seconds
            self.restarts += restarts
            self.infrastructure_errors += infrastructure_error

    def clear(self) -> list[Job]:
        """Take all programs that wait."""
        waiting = [*self._jobs, *self._later]
        self._jobs.clear()
        self._later.clear()
        return waiting
