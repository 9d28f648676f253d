"""Standing vLLM servers as a RolloutEngine: the trainer's side of `ascent serve`."""

from __future__ import annotations

import asyncio
import difflib
import http
import itertools
import logging
import queue
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ascent.errors import InputError
from ascent.rollout.engine import (
    Canary,
    EngineLostError,
    EnginePlace,
    WeightSyncError,
    WeightTransferError,
    check_length,
)
from ascent.rollout.engines.served.dispatch import Dispatcher
from ascent.rollout.engines.served.http_thread import OWN_SHORTAGE, HttpThread
from ascent.rollout.engines.served.jobs import jobs_of
from ascent.rollout.engines.served.replica import Replica, take_all, this_process
from ascent.rollout.engines.served.statistics import ServerStatistics
from ascent.rollout.engines.served.weight_failures import why_none_got_them
from ascent.rollout.service.address import ServiceAddress, lost, servers_now
from ascent.rollout.weights.control import NoServerReachedError, ServerCallError, WeightDelivery
from ascent.types import Completion, EngineStats, RolloutRequest, Sampling

if TYPE_CHECKING:
    from torch import Tensor

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.05
_BEGIN_SECONDS = 45.0  # the guard waits up to 30 for what the curious are sampling


class ServedEngine:
    """A RolloutEngine over the servers of one service.

    The process that sends weights holds the service: no other training can use it meanwhile. Other processes of the
    same training join with its `hold`, sample, and only follow the version. Servers that die are restarted by their
    supervisor; their unfinished completions are sampled again with the same seeds, elsewhere at once or after the next
    `update_weights` (see `needs_weights`). Raises EngineLostError, from any method, when the service won't come back.
    """

    place = EnginePlace.ELSEWHERE

    def __init__(
        self,
        address: ServiceAddress,
        delivery: WeightDelivery | None,
        *,
        holder_name: str,
        dtype: str = "bfloat16",
        hold: str | None = None,
        sends_weights: bool = True,
        adapter: str | None = None,
        connect_seconds: float = 60.0,
        patience: float = 600.0,
    ) -> None:
        """Take the service, or join it with the `hold` of the process that took it.

        `dtype` is what its servers compute in, where its address doesn't say. With `adapter` the training has an
        adapter of this name on the servers, and nothing else of them.

        `patience` is how many seconds without an answer of any server end a training with a service on another machine
        (what happens on this one is known). Raises InputError when another training holds the service or the token is
        wrong, EngineLostError when no server answers within `connect_seconds`.
        """
        if sends_weights and delivery is None:
            raise ValueError("the process that sends weights needs a delivery")
        if not sends_weights and hold is None:
            raise ValueError("a process that joins needs the hold of the one that sends weights")
        self.hold, self.adapter = hold or secrets.token_hex(16), adapter
        self.dtype = address.dtype or dtype
        if address.folder is not None and not address.folder.exists():
            address = replace(address, folder=None)  # another machine's, told by the process that took the service
        self._address, self._delivery = address, delivery
        self._http = HttpThread()

        def replica(url: str) -> Replica:
            return Replica(url, address.token, self.hold, self._http, adapter)

        replicas = [replica(url) for url in address.urls]
        self._unfinished = 0
        self.weights_seconds = 0.0  # that bringing weights to the servers took, in all
        holder = this_process(holder_name) if sends_weights else None
        try:
            self._connect(replicas, holder, connect_seconds)
        except BaseException:
            self._http.close()
            raise
        self._sends_weights = sends_weights
        self._dispatcher = Dispatcher(
            replicas, replica, lambda: servers_now(address), holder, lambda: lost(address), patience
        )
        self._statistics = ServerStatistics(self._http, lambda: self._replicas)
        self._http.run(self._start())

    @property
    def _replicas(self) -> list[Replica]:
        return [member.replica for member in self._dispatcher.members]

    async def _start(self) -> None:
        self._dispatcher.start()
        self._statistics.start()

    @property
    def max_model_len(self) -> int:
        """The servers' context in tokens."""
        return min(replica.status.max_model_len for replica in self._replicas if replica.status)

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        """See RolloutEngine. Raises InputError for sampling settings that the servers' vLLM doesn't know."""
        self._check()
        for request in requests:
            check_length(request, self.max_model_len)
            self._check_known(request.sampling)
        jobs = [job for request in requests for job in jobs_of(request)]
        self._unfinished += len(jobs)
        self._statistics.submitted(self._unfinished)
        self._http.soon(self._dispatcher.add, jobs)

    def poll(self) -> list[Completion]:
        """See RolloutEngine; waits up to 50 ms for something to finish. Raises InputError when the servers refuse the
        sampling settings."""
        completions: list[Completion] = []
        if not self._unfinished:
            self._check()
            return completions
        outcomes, wait = self._dispatcher.outcomes, _POLL_SECONDS
        try:
            while True:
                outcome = outcomes.get(timeout=wait) if wait else outcomes.get_nowait()
                if isinstance(outcome, Exception):
                    break
                completions.append(outcome)
                wait = 0.0
        except queue.Empty:
            pass
        self._unfinished -= len(completions)
        self._statistics.finished(completions, self._unfinished)
        if not completions:
            self._check()
        return completions

    def unfinished(self) -> int:
        """See RolloutEngine."""
        return self._unfinished

    def cannot_abort(self) -> str | None:
        """See AbortingEngine. Asks each server, whose vLLM may be of any version."""
        for replica in self._replicas:
            try:
                self._http.run(replica.abort([]))
            except ServerCallError as error:
                if error.status == http.HTTPStatus.NOT_FOUND:
                    return f"vLLM {replica.vllm_version} of {replica.url} has no way to break off a request by its id"
                _log.info("%s", error)  # a server that is away
        return None

    def abort(self) -> list[Completion]:
        """See AbortingEngine."""
        self._check()
        self._http.run(self._dispatcher.abort())
        completions: list[Completion] = []
        while self._unfinished:
            completions += self.poll()
        return completions

    def needs_weights(self, *, others_do: bool = False) -> bool:
        """See RolloutEngine."""
        return self._dispatcher.starved(others_are=others_do)

    def update_weights(
        self, named_tensors: Iterable[tuple[str, Tensor]], version: int, canary: Canary | None = None
    ) -> None:
        """See RolloutEngine. A server that doesn't get the weights is left out until the next call, as long as another
        one got them."""
        iterator = iter(named_tensors)
        try:
            self._check()
            self._pause()
            if self._sends_weights:
                self._update(iterator, version, canary)
        finally:
            for _ in iterator:  # making them may be collective, so whatever happened here, the others expect it
                pass
        self._http.soon(self._dispatcher.resume, version)

    def stats(self) -> EngineStats:
        """See RolloutEngine. Gauges are sampled once a second, counters are exact."""
        return self._statistics.take()

    def close(self) -> None:
        """See RolloutEngine. The servers go on; the hold on them is given back, and the delivery is closed."""
        if self._http.closed:
            return
        self._http.run(self._end())
        self._http.close()
        if self._delivery is not None:
            self._delivery.close()

    async def _end(self) -> None:
        await self._dispatcher.stop()
        if self._sends_weights:
            # where that fails, the lease runs out by itself
            await asyncio.gather(*(replica.release() for replica in self._replicas), return_exceptions=True)

    def _check(self) -> None:
        if self._dispatcher.failure is not None:
            raise self._dispatcher.failure

    def _check_known(self, sampling: Sampling) -> None:
        """vLLM's server drops settings that it doesn't know without a word."""
        for replica in self._replicas if sampling.extra else ():
            known = replica.status.sampling_parameters if replica.status else frozenset()
            unknown = sorted(name for name, _ in sampling.extra if known and name not in known)
            if unknown:
                close = difflib.get_close_matches(unknown[0], known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise InputError(
                    f"vLLM {replica.vllm_version} has no sampling setting {unknown[0]!r}{hint}",
                    "Further settings of the engine come from trainer.generation_kwargs.",
                )

    def _connect(self, replicas: list[Replica], holder: dict[str, object] | None, seconds: float) -> None:
        async def hear() -> None:
            until = time.monotonic() + seconds
            for replica in itertools.cycle(replicas):
                try:
                    await replica.hear()
                    return
                except ServerCallError as error:
                    if error.status is not None or time.monotonic() > until:
                        raise
                await asyncio.sleep(_POLL_SECONDS)

        try:
            self._http.run(hear() if holder is None else take_all(replicas, holder, seconds))
        except ServerCallError as error:
            if error.code == "held":
                raise InputError(
                    f"service {self._address.name}: {error}", "Wait until it is free, or start another service."
                ) from error
            if error.status == 401:
                raise InputError(f"service {self._address.name}: {error}", "Check the API key.") from error
            raise EngineLostError(lost(self._address) or f"service {self._address.name}: {error}") from error

    def _pause(self) -> None:
        """Sample nothing any more. Raises WeightSyncError while completions are being sampled."""

        async def pause() -> int:
            flying = self._dispatcher.in_flight()
            if not flying:
                self._dispatcher.resume(None)
            return flying

        if flying := self._http.run(pause()):
            raise WeightSyncError(f"{flying} completions are still being sampled with the old weights")

    def _update(self, named_tensors: Iterator[tuple[str, Tensor]], version: int, canary: Canary | None) -> None:
        assert self._delivery is not None
        replicas = self._begin(version)
        incarnations = {replica.url: replica.status.incarnation for replica in replicas if replica.status}
        try:
            delivered = self._delivery.deliver(replicas, named_tensors, version, canary)
            failed = dict(delivered.failed)
            self.weights_seconds += delivered.seconds.get("send", 0.0)
        except NoServerReachedError as error:
            failed = error.failed
        for replica in replicas:
            if replica.url in failed:
                continue
            try:
                self._http.run(replica.commit(version))
            except ServerCallError as error:
                failed[replica.url] = error
        for url, why in failed.items():
            _log.warning("weights of version %d did not reach %s: %s", version, url, why)
        if len(failed) == len(replicas):
            alive = {replica.url for replica in replicas if not self._is_gone(replica, incarnations[replica.url])}
            raise why_none_got_them(failed, alive)

    def _begin(self, version: int) -> list[Replica]:
        """Close every server that is there for sampling; waits for one.

        Raises WeightSyncError when those that are there refuse, WeightTransferError when they fail.
        """
        while not all(member.looked for member in self._dispatcher.members):
            self._check()
            time.sleep(_POLL_SECONDS)
        while True:
            self._check()
            begun: list[Replica] = []
            refusal: ServerCallError | None = None
            for member in self._dispatcher.members:
                if not member.up:
                    continue
                try:
                    self._http.run(member.replica.begin(version, _BEGIN_SECONDS))
                    begun.append(member.replica)
                except ServerCallError as error:
                    if error.status is not None and error.code != "hold":
                        refusal = error
            if begun:
                return begun
            if refusal is not None:
                failed_inside = refusal.status is not None and refusal.status >= 500
                raise (WeightTransferError if failed_inside else WeightSyncError)(str(refusal)) from refusal
            time.sleep(_POLL_SECONDS)

    def _is_gone(self, replica: Replica, incarnation: str) -> bool:
        """Whether a server died since it had this incarnation."""
        try:
            return self._http.run(replica.hear()).incarnation != incarnation
        except ServerCallError as error:
            return error.code != OWN_SHORTAGE  # what this process lacks says nothing about the server
