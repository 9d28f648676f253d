"""A trainer's view of one server: what its guard says, and the calls that control it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ascent.errors import InputError
from ascent.rollout.engines.served.http_thread import Answer, HttpThread
from ascent.rollout.engines.served.jobs import Job
from ascent.rollout.in_vllm.compat import short_answers
from ascent.rollout.in_vllm.guard import CANARY_HEADER, GENERATE, HOLD_HEADER, SCHEMA, STATUS_KIND, VERSION_HEADER
from ascent.rollout.weights.control import ServerCallError

_ABORT = "/abort_requests"  # vLLM's
_OF_GENERATE = "generate-tokens-"  # what its `GENERATE` puts before the ids of requests
STATUS_SECONDS = 4.0  # a server that serves answers its guard's own routes at once


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """What a server's guard says (`ascent.replica/2`)."""

    model: str
    max_model_len: int
    incarnation: str
    weights: str  # none, updating or ready
    version: int | None
    revision: int  # counts changes of the weights' state within an incarnation
    holder: Mapping[str, Any] | None
    vllm: str
    sampling_parameters: frozenset[str]  # that the server's vLLM knows; empty: it didn't say
    max_num_seqs: int | None = None  # completions that it samples at once; None: it didn't say


class Replica:
    """One server; a ControlPlane. Coroutines belong to the HTTP thread, `post` and `get` to any other."""

    def __init__(self, url: str, token: str, hold: str, http: HttpThread, adapter: str | None = None) -> None:
        """With an `adapter` it is only that which is held; others may hold others."""
        self._url, self._http, self._adapter = url, http, adapter
        self._headers = {"Authorization": f"Bearer {token}", HOLD_HEADER: hold}
        self._hold = hold
        self.status: ReplicaStatus | None = None  # the last that was heard

    @property
    def url(self) -> str:
        """See ControlPlane."""
        return self._url

    @property
    def room(self) -> int:
        """How many requests of this process may be under way at once, to all servers together."""
        return self._http.room

    @property
    def vllm_version(self) -> str:
        """See ControlPlane."""
        return self.status.vllm if self.status else ""

    def post(self, route: str, body: Mapping[str, Any], *, timeout: float) -> Any:
        """See ControlPlane. What is sampled so is a canary: it sees weights that were begun and not committed."""
        headers = {CANARY_HEADER: "1"} if route == GENERATE else {}
        return self._http.run(self.call("POST", route, dict(body), timeout, headers)).content

    def get(self, route: str, *, timeout: float) -> Any:
        """See ControlPlane."""
        return self._http.run(self.call("GET", route, None, timeout)).content

    async def call(
        self, method: str, route: str, body: Any, timeout: float, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One call, never repeated. Raises ServerCallError unless the status is 200."""
        sent = {**self._headers, **(headers or {})}
        raw = None if body is None else json.dumps(body).encode()
        answer = await self._http.request(method, self._url + route, headers=sent, body=raw, timeout=timeout)
        if answer.status != 200:
            raise ServerCallError(f"{self._url}{route}: {answer.message()}", answer.status, answer.code)
        return answer

    async def hear(self) -> ReplicaStatus:
        """Ask for the status."""
        return self._heard(await self.call("GET", "/ascent/status", None, STATUS_SECONDS))

    async def renew(self) -> ReplicaStatus:
        """Renew the hold. ServerCallError has the code `hold` when the server doesn't know it (any more)."""
        return self._heard(await self.call("POST", "/ascent/renew", {}, STATUS_SECONDS))

    async def take(self, holder: Mapping[str, Any]) -> ReplicaStatus:
        """Take the server under this trainer's hold. ServerCallError has the code `held` when another has it."""
        if self.status is None:
            await self.hear()  # a server of another version is refused before it is taken
        body = {"holder": dict(holder), "hold": self._hold, "adapter": self._adapter}
        return self._heard(await self.call("POST", "/ascent/hold", body, STATUS_SECONDS))

    async def release(self) -> None:
        """Give the server back."""
        await self.call("POST", "/ascent/release", {}, STATUS_SECONDS)

    async def begin(self, version: int, timeout: float) -> None:
        """Close the server for sampling: new weights come."""
        self._heard(await self.call("POST", "/ascent/weights/begin", {"version": version}, timeout))

    async def commit(self, version: int) -> None:
        """Open the server for sampling with the weights of `version`."""
        self._heard(await self.call("POST", "/ascent/weights/commit", {"version": version}, STATUS_SECONDS))

    def adapter_of(self, version: int) -> str | None:
        """vLLM's name of the adapter with the weights of `version`; None where all weights are the holder's."""
        return None if self._adapter is None else f"{self._adapter}@{version}"

    async def sample(self, body: bytes, version: int) -> Answer:
        """`/inference/v1/generate` with weights of exactly `version`; takes as long as it takes. What was sampled comes
        as bytes, for `Job.completion`."""
        headers = {**self._headers, VERSION_HEADER: str(version), short_answers.HEADER: "1"}
        url = self._url + GENERATE
        return await self._http.request("POST", url, headers=headers, body=body, timeout=None, as_bytes=True)

    async def abort(self, jobs: Sequence[Job]) -> None:
        """Have the server break off what it is sampling for some jobs: it answers with what there is. ServerCallError
        has the status 404 where its vLLM has no such route."""
        ids = [_OF_GENERATE + job.request_id for job in jobs]
        # vLLM takes an empty list for all that it samples
        await self.call("POST", _ABORT, {"request_ids": ids or [_OF_GENERATE]}, STATUS_SECONDS)

    async def metrics(self) -> str:
        """vLLM's Prometheus metrics as text."""
        return str((await self.call("GET", "/metrics", None, STATUS_SECONDS)).content)

    def _heard(self, answer: Answer) -> ReplicaStatus:
        """Raises InputError for a server that another version of Ascent started."""
        content = answer.content
        schema = str(content.get("schema", "")) if isinstance(content, dict) else ""
        if schema.startswith(STATUS_KIND) and schema != SCHEMA:
            raise InputError(
                f"{self._url} was started by another version of Ascent (it speaks {schema}, this version {SCHEMA})",
                "Stop the service where it runs, and start it again with this version: ascent serve --stop NAME; "
                "ascent serve MODEL --name NAME",
            )
        try:
            heard = ReplicaStatus(
                model=content["model"],
                max_model_len=content["max_model_len"],
                incarnation=content["incarnation"],
                weights=content["weights"]["state"],
                version=content["weights"]["version"],
                revision=content["weights"]["revision"],
                holder=content["holder"],
                vllm=content["vllm"] or "",
                sampling_parameters=frozenset(content["sampling_parameters"]),
                max_num_seqs=content.get("max_num_seqs"),
            )
        except (TypeError, KeyError):
            raise ServerCallError(f"{self._url}: not a server of `ascent serve`: {answer.message()}") from None
        known = self.status
        if known is None or known.incarnation != heard.incarnation or known.revision <= heard.revision:
            self.status = heard  # answers may overtake each other
        return heard


def this_process(name: str) -> dict[str, Any]:
    """How this trainer names itself as a holder."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return {"name": name, "pid": os.getpid(), "host": socket.gethostname(), "since": since}


async def take_all(replicas: list[Replica], holder: Mapping[str, Any], seconds: float) -> list[Replica]:
    """Take every server that answers, waiting for at least one. A server that another trainer holds is an error
    (ServerCallError, code `held`), and those already taken are given back."""
    until = time.monotonic() + seconds
    while True:
        taken: list[Replica] = []
        last: ServerCallError | None = None
        for replica in replicas:
            try:
                await replica.take(holder)
                taken.append(replica)
            except ServerCallError as error:
                last = error
                if error.status is not None:
                    await asyncio.gather(*(each.release() for each in taken), return_exceptions=True)
                    raise
        if taken:
            return taken
        if time.monotonic() > until:
            assert last is not None
            raise last
        await asyncio.sleep(0.2)
