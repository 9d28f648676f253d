"""The last step of verification: does the whole model give known sequences the log-probabilities it should?

Sampler and trainer never agree to the last bit, so how far they may differ is learned: from the first delivery that
was clean otherwise, growing slowly with later ones, and never beyond what `expected_differences` calls wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ascent.rollout.engine import Canary
from ascent.rollout.weights.control import ControlPlane
from ascent.rollout.weights.verify.expected_differences import expected_difference

_MARGIN = 4.0  # over what was seen when all was well
_GROWTH = 1.1  # of what counts as seen, at most, from one delivery to the next


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """Mean |trainer - sampler| over all positions, and what was allowed."""

    mean: float
    allowed: float

    @property
    def agrees(self) -> bool:
        """Whether the difference is allowed; never where a log-probability was not a number."""
        return self.mean <= self.allowed


class CanaryTolerance:
    """How far an engine may differ from the trainer: learned over all engines of a run."""

    def __init__(self, sampler_dtype: str) -> None:
        self._sampler_dtype = sampler_dtype
        self._usual: float | None = None

    def check(self, mean: float, trainer_dtype: str) -> CanaryResult:
        """Whether one engine's mean difference is allowed; one that is counts for what is usual from now on."""
        expected = expected_difference(self._sampler_dtype, trainer_dtype)
        allowed = expected.wrong
        if self._usual is not None:
            allowed = min(expected.wrong, max(expected.usual, _MARGIN * self._usual))
        result = CanaryResult(mean, allowed)
        if result.agrees:
            self._usual = mean if self._usual is None else max(self._usual, min(mean, self._usual * _GROWTH))
        return result


def mean_difference(canary: Canary, found: Sequence[Sequence[float]]) -> float:
    """Mean |trainer - sampler| log-probability over the positions of all sequences; NaN when one is not a number."""
    differences = [
        abs(trainer - sampler)
        for expected, given in zip(canary.logps, found, strict=True)
        for trainer, sampler in zip(expected, given, strict=True)
    ]
    return math.fsum(differences) / max(1, len(differences))


def difference(replica: ControlPlane, canary: Canary, timeout: float, *, adapter: str | None = None) -> float:
    """`mean_difference` of one server, with one of its adapters where that is named."""
    with ThreadPoolExecutor(max(1, len(canary.sequences)), thread_name_prefix="ascent-canary") as pool:
        answers = list(pool.map(lambda sequence: _prompt_logps(replica, sequence, timeout, adapter), canary.sequences))
    return mean_difference(canary, answers)


def _prompt_logps(replica: ControlPlane, sequence: Sequence[int], timeout: float, adapter: str | None) -> list[float]:
    """The log-probability of each token but the first, after those before it."""
    sampling = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "detokenize": False}
    body = {"token_ids": list(sequence), "sampling_params": sampling, "stream": False}
    if adapter is not None:
        body["model"] = adapter
    answer = replica.post("/inference/v1/generate", body, timeout=timeout)
    logprobs = (answer or {}).get("prompt_logprobs") or []
    if len(logprobs) != len(sequence):
        return [math.nan] * (len(sequence) - 1)
    found = []
    for token, at in zip(sequence[1:], logprobs[1:], strict=True):
        entry = (at or {}).get(str(token))
        found.append(math.nan if entry is None else float(entry["logprob"]))
    return found
