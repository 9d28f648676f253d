"""A stand-in for an engine with a long tail, which is driven token by token and can be closed in the middle."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ascent.rollout.engine import Canary, EnginePlace
from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.types import Completion, EngineStats, FinishReason, RolloutRequest

FIRST, LAST = 5, 200  # tokens that it draws
END = 2


@dataclass
class _Running:
    request: RolloutRequest
    index: int
    begun: float
    draws: random.Random
    ids: list[int] = field(default_factory=list)


class RaggedEngine:
    """Each `poll` draws a token for each completion, from its request's seed. Tokens from 5 to 199; how likely a
    completion ends is told by its prompt, so that some prompts have long completions. A token's log-probability is that
    of no policy: it tells the token, or if `telling` the weights that sampled it (`-1 - version`)."""

    place = EnginePlace.TRAINERS_PROCESS
    dtype = "float32"

    def __init__(self, *, telling: bool = False, seconds: float = 0.0) -> None:
        """A `poll` takes so many seconds."""
        self._telling, self._seconds = telling, seconds
        self.asked: list[RolloutRequest] = []
        self.polls = 0
        self._running: list[_Running] = []
        self._version: int | None = None

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        assert self._version is not None
        self.asked += requests
        for request in requests:
            assert request.sampling.max_tokens is None or request.sampling.max_tokens > 0
            for index in range(request.n):
                draws = random.Random((request.seed or 0) + index)
                self._running.append(_Running(request, index, time.monotonic(), draws))

    def poll(self) -> list[Completion]:
        self.polls += 1
        time.sleep(self._seconds)
        ended = []
        for each in list(self._running):
            each.ids.append(self._token(each))
            longest = each.request.sampling.max_tokens
            if each.ids[-1] == END or len(each.ids) == longest:
                self._running.remove(each)
                ended.append(self._completion(each, "stop" if each.ids[-1] == END else "length"))
        return ended

    def cannot_abort(self) -> str | None:
        return None

    def abort(self) -> list[Completion]:
        running, self._running = self._running, []
        return [self._completion(each, "abort") for each in running]

    def unfinished(self) -> int:
        return len(self._running)

    def needs_weights(self, *, others_do: bool = False) -> bool:
        return False

    def update_weights(self, named_tensors: Iterable[Any], version: int, canary: Canary | None = None) -> None:
        assert not self._running, "new weights while completions are sampled with the old ones"
        assert len(list(named_tensors)) > 10
        self._version = version

    def stats(self) -> EngineStats:
        return EngineStats()

    def close(self) -> None: ...

    def _token(self, each: _Running) -> int:
        hardness = 2 + sum(each.request.prompt_ids[:6]) % 12
        return END if each.draws.random() < 1 / hardness else each.draws.randrange(FIRST, LAST)

    def _completion(self, each: _Running, reason: FinishReason) -> Completion:
        assert self._version is not None
        logps = [-1.0 - self._version if self._telling else -5.0 - token / 1000 for token in each.ids]
        return Completion(
            each.request.group_id,
            each.index,
            each.request.prompt_ids,
            as_token_ids(each.ids),
            as_logps(logps),
            reason,
            self._version,
            each.begun,
            time.monotonic(),
        )
