"""A stand-in for an engine that samples elsewhere: it follows the protocol to the letter and checks how it is used."""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ascent.rollout.engine import Canary, EnginePlace
from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.types import Completion, EngineStats, RolloutRequest


class FarEngine:
    """Completions made of the request alone, so that samples don't depend on when they are asked for."""

    place = EnginePlace.ELSEWHERE
    dtype = "float32"

    def __init__(self, seconds: float = 0.0) -> None:
        self.events: list[tuple[str, Any]] = []
        self.failures: list[Exception] = []  # raised by the next updates
        self.loses_weights_after: int | None = None  # completions
        self.canaries: list[Canary] = []
        self._seconds = seconds
        self._waiting: list[tuple[RolloutRequest, int, float]] = []
        self._version: int | None = None
        self._busy = threading.Lock()

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        assert self._version is not None
        self.events.append(("submit", sorted({request.group_id.split("-")[0] for request in requests})))
        now = time.monotonic()
        self._waiting += [(request, index, now) for request in requests for index in range(request.n)]

    def poll(self) -> list[Completion]:
        assert self._busy.acquire(blocking=False), "two threads use the engine at once"
        try:
            assert self._version is not None, "sampled without weights"
            time.sleep(self._seconds)
            if not self._waiting:
                return []
            if self.loses_weights_after is not None:
                self.loses_weights_after -= 1
                if self.loses_weights_after < 0:
                    self.loses_weights_after, self._version = None, None
                    return []
            request, index, submitted = self._waiting.pop()
            ids = random.Random(f"{request.seed}/{index}").choices(range(5, 200), k=6)
            logps = as_logps((math.nan,) * len(ids))  # as vLLM says of what it could not score
            version = self._version
            return [
                Completion(
                    request.group_id,
                    index,
                    request.prompt_ids,
                    as_token_ids(ids),
                    logps,
                    "length",
                    version,
                    submitted,
                    0.0,
                )
            ]
        finally:
            self._busy.release()

    def unfinished(self) -> int:
        return len(self._waiting)

    def needs_weights(self, *, others_do: bool = False) -> bool:
        return self._version is None

    def update_weights(self, named_tensors: Iterable[Any], version: int, canary: Canary | None = None) -> None:
        assert self._version is None or not self._waiting, "new weights while completions are sampled with the old ones"
        assert len(list(named_tensors)) > 10
        self.events.append(("update", version))
        assert canary is not None
        self.canaries.append(canary)
        if self.failures:
            raise self.failures.pop()
        self._version = version

    def stats(self) -> EngineStats:
        return EngineStats(tokens_per_second=1.0)

    def close(self) -> None: ...
