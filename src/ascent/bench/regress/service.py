"""A standing service, asked as any of its users may: over OpenAI's routes with its token, without taking hold of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ascent.bench.regress.subject import EngineChoice
from ascent.errors import InputError
from ascent.models.digests import weights_digest
from ascent.rollout.engines.scoring import RIVALS, TokenScores, scores
from ascent.rollout.engines.served.http_thread import HttpThread
from ascent.rollout.engines.served.replica import Replica, ReplicaStatus
from ascent.rollout.service import record
from ascent.rollout.service.address import ServiceAddress, standing_service
from ascent.rollout.service.processes import group_members
from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.rollout.vllm_arguments import sampling_arguments
from ascent.rollout.weights.control import ServerCallError
from ascent.types import Completion, RolloutRequest

_COMPLETIONS = "/v1/completions"
_SECONDS = 600.0  # for one answer
_AT_ONCE = 256  # requests, as far as open files leave room


class StandingService:
    """A Subject. Requests go to its servers in turn, so that each of them is asked."""

    def __init__(self, address: ServiceAddress, http: HttpThread, eos: tuple[int, ...]) -> None:
        self._address, self._http = address, http
        self._replicas = [Replica(url, address.token, "", http) for url in address.urls]
        self._room = asyncio.Semaphore(min(_AT_ONCE, http.room))
        self.eos_token_ids = eos

    @classmethod
    @contextlib.contextmanager
    def found(cls, choice: EngineChoice, eos: tuple[int, ...]) -> Iterator[StandingService]:
        """The service of a choice. Raises InputError when it isn't there, is in use, or has a training's weights."""
        assert choice.service is not None
        http = HttpThread()
        try:
            service = cls(standing_service(choice.service), http, eos)
            for status in service.heard():
                check_untouched(status, choice.service)
            yield service
        finally:
            http.close()

    @property
    def dtype(self) -> str:
        """What its servers compute in, "unknown" for those on another machine."""
        return self._address.dtype or "unknown"

    def check_model(self, folder: Path) -> None:
        """Raise InputError when the service is known to serve another model than this folder's."""
        served = self._address.model
        if served is None or not Path(served).is_dir() or Path(served).resolve() == folder.resolve():
            return
        if weights_digest(Path(served)) != weights_digest(folder):
            raise InputError(
                f"service {self._address.name} serves {served}, whose weights are not those of {folder}",
                "Give the model that it serves, or another service.",
            )

    def heard(self) -> list[ReplicaStatus]:
        """What each server says of itself. Raises InputError when one doesn't answer."""
        return self._all([replica.hear() for replica in self._replicas])

    def sample(self, requests: Sequence[RolloutRequest]) -> list[Completion]:
        """See Subject."""
        jobs = [(request, index) for request in requests for index in range(request.n)]
        return self._all([self._sample(place, request, index) for place, (request, index) in enumerate(jobs)])

    def score(self, sequences: Sequence[Sequence[int]]) -> list[TokenScores]:
        """See Subject."""
        return self._all([self._score(place, sequence) for place, sequence in enumerate(sequences)])

    def memory(self) -> int | None:
        """See Subject: resident memory of servers that compute on this machine's CPU."""
        found = self._record()
        if found is None or found.settings["device_kind"] != "cpu":
            return None
        return sum(_resident_peak(pid) for pid in self.processes())

    def processes(self) -> list[int]:
        """See Subject."""
        found = self._record()
        groups = [replica.pid for replica in found.replicas if replica.pid is not None] if found else []
        return [pid for group in groups for pid in group_members(group)]

    def _record(self) -> record.ServiceRecord | None:
        return None if self._address.folder is None else record.read(self._address.folder)

    async def _sample(self, place: int, request: RolloutRequest, index: int) -> Completion:
        seed = None if request.seed is None else request.seed + index
        submitted = time.monotonic()
        choice = await self._ask(place, request.prompt_ids, sampling_arguments(request.sampling, seed))
        token_ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        return Completion(
            group_id=request.group_id,
            index=index,
            prompt_ids=request.prompt_ids,
            token_ids=as_token_ids(token_ids),
            logps=as_logps(logprobs),
            finish_reason=choice["finish_reason"],
            weight_version=0,
            submitted_at=submitted,
            finished_at=time.monotonic(),
        )

    async def _score(self, place: int, sequence: Sequence[int]) -> TokenScores:
        asked = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": RIVALS}
        found = (await self._ask(place, sequence, asked)).get("prompt_logprobs") or ()
        places = [at and {int(token): float(entry["logprob"]) for token, entry in at.items()} for at in found]
        return scores(sequence, places)

    async def _ask(self, place: int, prompt_ids: Sequence[int], asked: Mapping[str, Any]) -> dict[str, Any]:
        """The one choice of an answer. Raises ServerCallError."""
        replica = self._replicas[place % len(self._replicas)]
        known = {name: value for name, value in asked.items() if name != "detokenize"}
        body = {**known, "prompt": list(prompt_ids), "return_token_ids": True, "stream": False}
        async with self._room:
            answer = await replica.call("POST", _COMPLETIONS, body, _SECONDS)
        try:
            choice: dict[str, Any] = answer.content["choices"][0]
        except (TypeError, KeyError, IndexError) as error:
            raise ServerCallError(
                f"{replica.url}{_COMPLETIONS}: no completion in {json.dumps(answer.content)[:300]}"
            ) from error
        return choice

    def _all(self, calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        """The results of calls that are under way together."""

        async def together() -> list[Any]:
            return await asyncio.gather(*calls)

        try:
            return self._http.run(together())
        except ServerCallError as error:
            mend = "Check its API key (ASCENT_API_KEY)." if error.status == 401 else "Look: ascent serve --status"
            raise InputError(f"service {self._address.name}: {error}", mend) from error


def check_untouched(status: ReplicaStatus, service: str) -> None:
    """Raise InputError for a server that a training holds, or that has a training's weights."""
    if status.holder is not None:
        raise InputError(
            f"service {service} is held by a training ({status.holder.get('name')}): that would be measured too",
            "Wait until it is free (ascent serve --status), or start another one.",
        )
    if status.weights != "none":
        raise InputError(
            f"service {service} has a training's weights (version {status.version}), not the checkpoint's",
            "Start one for this: ascent serve MODEL",
        )


def _resident_peak(pid: int) -> int:
    """Bytes; 0 for a process that has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
