"""What the servers did, from vLLM's own metrics, and what the trainer saw of it."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence

from ascent.rollout.engines.counter import EngineCounter
from ascent.rollout.engines.served.http_thread import HttpThread
from ascent.rollout.engines.served.replica import Replica
from ascent.rollout.service.metrics import EngineMetrics, read_metrics
from ascent.rollout.weights.control import ServerCallError
from ascent.types import Completion, EngineStats

_SCRAPE_SECONDS, _FIRST_LOOK_SECONDS = 1.0, 0.15


class ServerStatistics:
    """Figures since the last `take`: of completions from this trainer's side, the rest summed over the servers."""

    def __init__(self, http: HttpThread, replicas: Callable[[], Sequence[Replica]]) -> None:
        self._http, self._replicas = http, replicas
        self._counter = EngineCounter()
        self._busy_since: float | None = None
        self._latest: dict[str, tuple[str, EngineMetrics]] = {}  # by URL: the server's incarnation, its metrics
        self._reading = asyncio.Lock()
        self._first_token_seconds = 0.0
        self._first_tokens = 0.0

    def start(self) -> None:
        """Begin to read metrics; in the HTTP thread."""
        self._scraping = asyncio.ensure_future(self._scrape())

    def submitted(self, unfinished: int) -> None:
        """Completions were submitted."""
        if unfinished and self._busy_since is None:
            self._busy_since = time.monotonic()
            self._http.soon(self._look_soon)

    def finished(self, completions: Sequence[Completion], unfinished: int) -> None:
        """Completions came back."""
        for completion in completions:
            self._counter.finished(completion)
        if not unfinished:
            self._count_busy()

    def take(self) -> EngineStats:
        """The figures so far; starts anew."""
        self._http.run(self._read_all())
        busy = self._busy_since is not None
        self._count_busy()
        if busy:
            self._busy_since = time.monotonic()
        first = self._first_token_seconds / self._first_tokens if self._first_tokens else 0.0
        self._first_token_seconds = self._first_tokens = 0.0
        return dataclasses.replace(self._counter.take(), time_to_first_token=first)

    def _count_busy(self) -> None:
        if self._busy_since is not None:
            self._counter.busy_seconds += time.monotonic() - self._busy_since
            self._busy_since = None

    def _look_soon(self) -> None:
        """A generation may be over before the next scrape."""

        async def look() -> None:
            await asyncio.sleep(_FIRST_LOOK_SECONDS)
            await self._read_all()

        self._first_look = asyncio.ensure_future(look())

    async def _scrape(self) -> None:
        while True:
            await self._read_all()
            await asyncio.sleep(_SCRAPE_SECONDS)

    async def _read_all(self) -> None:
        async with self._reading:  # answers must not overtake each other
            now = await asyncio.gather(*(self._read(replica) for replica in self._replicas()))
        seen = [metrics for metrics in now if metrics is not None]
        if seen:
            counter = self._counter
            counter.kv_cache_use = max(counter.kv_cache_use, *(each.kv_cache_usage_perc for each in seen))
            counter.running = max(counter.running, int(sum(each.num_requests_running for each in seen)))
            counter.waiting = max(counter.waiting, int(sum(each.num_requests_waiting for each in seen)))

    async def _read(self, replica: Replica) -> EngineMetrics | None:
        """Read one server's metrics and count what its counters grew by."""
        try:
            now = read_metrics(await replica.metrics())
        except ServerCallError:
            return None  # the dispatcher looks after servers that don't answer
        incarnation = replica.status.incarnation if replica.status else ""
        # what happened before this trainer came isn't its own; a restarted server's counters began at zero
        known, before = self._latest.get(replica.url, (incarnation, now))
        if known != incarnation:
            before = EngineMetrics()
        self._latest[replica.url] = incarnation, now
        counter = self._counter
        counter.preemptions += int(now.num_preemptions_total - before.num_preemptions_total)
        counter.prefix_queries += int(now.prefix_cache_queries_total - before.prefix_cache_queries_total)
        counter.prefix_hits += int(now.prefix_cache_hits_total - before.prefix_cache_hits_total)
        self._first_token_seconds += now.time_to_first_token_seconds_sum - before.time_to_first_token_seconds_sum
        self._first_tokens += now.time_to_first_token_seconds_count - before.time_to_first_token_seconds_count
        return now
