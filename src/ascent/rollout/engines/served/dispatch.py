"""Which server samples which completion, and what becomes of it when a server goes away.

Everything here happens in the HTTP thread's loop, except `outcomes`, which other threads take from.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ascent import devices
from ascent.errors import InputError
from ascent.rollout.engine import EngineLostError, ServerMemoryError
from ascent.rollout.engines.served.http_thread import NO_CONNECTION, OWN_SHORTAGE, Answer
from ascent.rollout.engines.served.jobs import BrokenAnswerError, Job
from ascent.rollout.engines.served.members import Member, followed
from ascent.rollout.engines.served.replica import Replica, ReplicaStatus
from ascent.rollout.weights.control import ServerCallError
from ascent.types import Completion

_log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_SECONDS, HURRY_SECONDS = 1.0, 0.2  # between two looks at a server; in a hurry while completions wait for one
MISSES = 2  # looks without an answer in STATUS_SECONDS, after which a server's completions go elsewhere
TAKEN_AFTER = (
    5.0  # seconds in which another may have a server; who tries to take a service holds parts of it for a moment
)
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)  # before a completion that a server failed to sample is tried again
_REFUSED = 409
# What a server is asked for at once: it queues what it doesn't sample yet. More would only hold connections.
_SAMPLED_AT_ONCE, _QUEUED = 128, 2  # completions, of a server that doesn't tell; times that many


class Dispatcher:
    """Sends jobs to the servers of one service. `outcomes` receives each Completion once, or the exception that ends
    sampling.

    With a `holder` the servers are taken and kept in its name, otherwise they are held by another process of the same
    training. `lost` says why the service won't come back, None while it may; `urls` which servers it has now and which
    of them it drains (False), None where that is unknown; `make` a server's ControlPlane.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        make: Callable[[str], Replica],
        urls: Callable[[], Mapping[str, bool] | None],
        holder: Mapping[str, Any] | None,
        lost: Callable[[], str | None],
        patience: float,
    ) -> None:
        self.members = [Member(replica) for replica in replicas]
        self.outcomes: queue.SimpleQueue[Completion | Exception] = queue.SimpleQueue()
        self.version: int | None = None  # that is sampled with; None: nothing is
        self.failure: Exception | None = None
        self._make, self._urls = make, urls
        self._holder, self._lost, self._patience = holder, lost, patience
        self._waiting: deque[Job] = deque()
        self._up_at = time.monotonic()
        self._room = self._most  # connections to each server
        self._shortages = 0  # since the last completion
        self._pauses: set[asyncio.Task[None]] = set()
        self._aborting = False

    def start(self) -> None:
        """Begin to look after the servers."""
        self._tasks = [asyncio.ensure_future(self._look_after(member)) for member in self.members]
        self._tasks.append(asyncio.ensure_future(self._watch_service()))
        for task in self._tasks:
            task.add_done_callback(self._no_error)

    def add(self, jobs: Sequence[Job]) -> None:
        """Queue completions."""
        self._waiting.extend(jobs)
        self._dispatch()

    async def abort(self) -> None:
        """Break off all completions: when this returns `outcomes` has what there is of each, unless sampling ended."""
        self._aborting = True
        self._dispatch()
        try:
            while self.failure is None and (flying := [each for member in self.members for each in member.flights]):
                busy = [member for member in self.members if member.flights]
                asked = (member.replica.abort(list(member.flights.values())) for member in busy)
                await asyncio.gather(*asked, return_exceptions=True)  # a server that is gone is noticed elsewhere
                await asyncio.wait(flying, timeout=HURRY_SECONDS)  # one that came after the call is asked for again
            while self.failure is None and self._pauses:
                await asyncio.wait(self._pauses)
        finally:
            self._aborting = False

    def resume(self, version: int | None) -> None:
        """Sample with the weights of `version` from now on; None: nothing."""
        self.version = version
        for member in self.members:
            member.wake.set()
        self._dispatch()

    async def stop(self) -> None:
        """Sample nothing any more, for good; afterwards no server is asked for anything, or taken again."""
        self.failure = self.failure or EngineLostError("the engine was closed")
        tasks = [*self._tasks, *self._pauses, *(flight for member in self.members for flight in member.flights)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def _most(self) -> int:
        """Connections to each server, when this process lacks nothing."""
        return max(1, min(member.replica.room for member in self.members) // len(self.members))

    def in_flight(self) -> int:
        """How many completions servers are sampling."""
        return sum(len(member.flights) for member in self.members)

    def starved(self, *, others_are: bool = False) -> bool:
        """Whether completions wait, and only new weights can bring them on: no server has the weights, one is there.

        A process that sends no weights hears late of those that come, so to it only a server without any weights (it
        was restarted) says so. `others_are`: the process that sends them has found that they are needed.
        """
        if not self._waiting or self.version is None or self.in_flight() or self._pauses:
            return False
        if any(member.has(self.version) for member in self.members):
            return False
        knows_what_comes = self._holder is not None or others_are
        hopeless = ("none", "updating", "ready") if knows_what_comes else ("none",)
        statuses = [member.replica.status for member in self.members if member.up]
        return any(status is not None and status.weights in hopeless for status in statuses)

    def _dispatch(self) -> None:
        """Give what waits to servers that have room; completions of one group that wait together stay together."""
        while self._aborting and self._waiting:
            self.outcomes.put(self._waiting.popleft().nothing(self.version or 0))
        while self._waiting and self.failure is None:
            able = {member: self._at_once(member) for member in self.members if member.has(self.version)}
            group, most = self._waiting[0].request.group_id, max(able.values(), default=0)
            together = [job for job in itertools.islice(self._waiting, most) if job.request.group_id == group]
            free = {member: self._piece(member, at_once, len(together)) for member, at_once in able.items()}
            ready = [member for member, piece in free.items() if piece]
            if not ready:
                return
            member = min(ready, key=lambda member: member.outstanding)
            for _ in range(free[member]):
                job = self._waiting.popleft()
                flight = asyncio.ensure_future(self._fly(job, member))
                member.flights[flight] = job
                flight.add_done_callback(functools.partial(self._landed, member))

    def _at_once(self, member: Member) -> int:
        status = member.replica.status
        sampled = (status.max_num_seqs if status else None) or _SAMPLED_AT_ONCE
        return min(sampled * _QUEUED, self._room)

    def _piece(self, member: Member, at_once: int, together: int) -> int:
        """How many of so many completions of a group a server takes now: all, or half of what it may have where that is
        less; none while it has no room for them. So it has as many as it samples at once, or nothing waits."""
        piece = min(together, max(1, at_once // _QUEUED))
        return piece if len(member.flights) + piece <= at_once else 0

    async def _fly(self, job: Job, member: Member) -> float | None:
        """Have one completion sampled; the seconds after which it must be tried again, None when it is done with."""
        version = self.version
        assert version is not None
        try:
            body = job.body(member.replica.adapter_of(version))
        except TypeError as error:
            self._fail(InputError(f"the sampling settings can't be sent to a server: {error}"))
            return None
        try:
            answer = await member.replica.sample(body, version)
        except ServerCallError as error:  # the connection broke
            if error.code == OWN_SHORTAGE:
                return self._short(str(error))
            _log.info("%s", error)
            self._doubt(member)
            return 0.0
        member.answers += 1
        return self._file(answer, job, member, version)

    def _landed(self, member: Member, flight: asyncio.Task[float | None]) -> None:
        """Queue a completion again that wasn't sampled. (A cancelled task may not have run at all.)"""
        job = member.flights.pop(flight)
        self._no_error(flight)
        if self.failure is not None:
            return
        again = 0.0 if flight.cancelled() else flight.result()
        if again:
            self._later(again, lambda: self.add([job]))
        elif again is not None:
            self._waiting.appendleft(job)
        self._dispatch()

    def _file(self, answer: Answer, job: Job, member: Member, version: int) -> float | None:
        """File a completion, or say after how many seconds to try again."""
        if answer.status == 200:
            try:
                self.outcomes.put(job.completion(answer.content, version, aborted=self._aborting))
                self._shortages = 0
                return None
            except BrokenAnswerError as error:
                return self._failed(job, f"{member.replica.url}: {error}")
        if answer.status == _REFUSED:  # other weights, or a hold that it doesn't know: the next look will tell
            _log.info("%s: %s", member.replica.url, answer.message())
            self._doubt(member)
            return 0.0
        if answer.status in (400, 413, 422):
            self._fail(InputError(f"the sampling server refuses a request: {answer.message()}"))
            return None
        if answer.status >= 500:
            return self._failed(job, f"{member.replica.url}: HTTP {answer.status}: {answer.message()}")
        self._fail(EngineLostError(f"{member.replica.url}: HTTP {answer.status}: {answer.message()}"))
        return None

    def _short(self, why: str) -> float:
        """This process can't open another connection: ask for nothing for a while, then for fewer at once."""
        if self._room:
            _log.warning("%s. Fewer completions are asked for at once.", why)
            self._room = 0
            self._shortages += 1
            pause = _PAUSES[min(self._shortages, len(_PAUSES)) - 1]
            self._later(pause, lambda: self._after_shortage(why))
        return 0.0

    def _after_shortage(self, why: str) -> None:
        connected = self.in_flight()  # those that had no connection have landed
        if not connected and self._shortages > len(_PAUSES):
            self._fail(EngineLostError(why))
            return
        self._room = max(1, connected // len(self.members))
        self._dispatch()

    def _failed(self, job: Job, why: str) -> float | None:
        job.failures += 1
        _log.warning("sampling failed (%d): %s", job.failures, why)
        if job.failures > len(_PAUSES):
            kind = ServerMemoryError if devices.says_out_of_memory(why) else EngineLostError
            self._fail(kind(f"a completion could not be sampled in {job.failures} attempts; the last: {why}"))
            return None
        return _PAUSES[job.failures - 1]

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        async def pause() -> None:
            await asyncio.sleep(seconds)
            self._pauses.discard(task)
            call()

        task = asyncio.ensure_future(pause())
        task.add_done_callback(self._no_error)
        self._pauses.add(task)

    def _no_error(self, task: asyncio.Task[Any]) -> None:
        """An error that nobody foresaw must not leave completions waiting for ever."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            self.outcomes.put(error)

    async def _look_after(self, member: Member) -> None:
        """Keep the hold on one server, and notice when it goes away or comes back as another."""
        while self.failure is None and member in self.members:
            answers = member.answers
            try:
                self._heard(member, await self._ask(member))
            except ServerCallError as error:
                self._missed(member, error, busy=member.answers > answers)
            member.looked = True
            waits = self._waiting and self.version is not None and not member.has(self.version)
            member.wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(member.wake.wait(), HURRY_SECONDS if member.misses or waits else LOOK_SECONDS)

    def _missed(self, member: Member, error: ServerCallError, *, busy: bool) -> None:
        _log.debug("%s", error)
        if error.code == "held":
            member.held = False
            member.taken_at = member.taken_at or time.monotonic()
            if time.monotonic() - member.taken_at > TAKEN_AFTER:
                self._fail(EngineLostError(f"{error}: this training lost its hold, and another has taken the server"))
        elif error.status == 401:
            self._fail(EngineLostError(str(error)))
        elif error.code == OWN_SHORTAGE:  # says nothing about the server
            _log.warning("%s", error)
        elif error.code == NO_CONNECTION:
            self._not_reachable(member)
        elif error.status is None and not busy:  # hundreds of long completions at once can keep a server from answering
            member.misses += 1
            if member.misses >= MISSES:  # one may be this process's own pause
                self._not_reachable(member)

    async def _ask(self, member: Member) -> ReplicaStatus:
        if self._holder is None:
            status = await member.replica.hear()
            member.held = status.holder is not None
            return status
        if member.held:
            try:
                return await member.replica.renew()
            except ServerCallError as error:
                if error.code != "hold":
                    raise
                member.held = False
        status = await member.replica.take(self._holder)
        member.held = True
        return status

    def _heard(self, member: Member, status: ReplicaStatus) -> None:
        if member.incarnation and status.incarnation != member.incarnation:
            _log.warning("%s was restarted", member.replica.url)
            self._break_off(member)
        member.incarnation = status.incarnation
        member.misses, member.taken_at = 0, None
        member.heard_at = self._up_at = time.monotonic()
        self._dispatch()

    def _doubt(self, member: Member) -> None:
        """Send nothing new to a server before it was looked at."""
        member.heard_at = 0.0
        member.wake.set()

    def _not_reachable(self, member: Member) -> None:
        if member.heard_at:
            _log.warning(
                "%s does not answer; %d completions are sampled again", member.replica.url, len(member.flights)
            )
        member.heard_at = 0.0
        self._break_off(member)

    def _break_off(self, member: Member) -> None:
        for flight in list(member.flights):
            flight.cancel()

    def _follow(self) -> None:
        """Take in servers that the service was given, and leave out those that it drains."""
        urls = self._read_service(self._urls)
        if not urls:
            return
        before, self.members = self.members, followed(self.members, urls, self._make)
        for member in before:
            if member not in self.members:
                self._not_reachable(member)
        for member in self.members:
            if member not in before:
                _log.info("%s is new; it samples with the next weights", member.replica.url)
                self._tasks.append(asyncio.ensure_future(self._look_after(member)))
                self._tasks[-1].add_done_callback(self._no_error)

    async def _watch_service(self) -> None:
        """Follow the service's servers, and end sampling when the service won't come back."""
        while self.failure is None:
            self._follow()
            if (why := self._read_service(self._lost)) is not None:
                self._fail(EngineLostError(why))
            elif time.monotonic() - self._up_at > self._patience:
                urls = ", ".join(member.replica.url for member in self.members)
                self._fail(EngineLostError(f"no sampling server has answered for {self._patience:g} s ({urls})"))
            if self._room:  # a shortage may pass
                self._room = min(self._most, self._room + max(1, self._room // 8))
            await asyncio.sleep(LOOK_SECONDS)

    def _read_service(self, read: Callable[[], T | None]) -> T | None:
        try:
            return read()
        except OSError as error:  # such as too many open files, which says nothing about the service
            _log.warning("can't see how the service is: %s", error)
            return None
