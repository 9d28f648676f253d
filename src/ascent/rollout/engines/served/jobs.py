"""Completions as requests to a server's `/inference/v1/generate` and back: token ids in, token ids out."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, cast

from ascent.rollout.vllm_arguments import sampling_arguments
from ascent.types import Completion, FinishReason, RolloutRequest

# vLLM's RequestOutputKind.FINAL_ONLY: nothing is made of a completion before its end. Newer servers do so by
# themselves, 0.23 would put all tokens so far together at each step.
_FINAL_ONLY = 2


@dataclass(eq=False, slots=True)
class Job:
    """One completion to be sampled; sampling it again gives the same."""

    request: RolloutRequest
    index: int
    submitted_at: float
    failures: int = 0  # answers of servers that tried and failed

    @property
    def tokens(self) -> int:
        """What it may cost: prompt and longest completion, where that is limited."""
        return len(self.request.prompt_ids) + (self.request.sampling.max_tokens or 0)

    def body(self) -> bytes:
        """The request's JSON. Raises TypeError when `Sampling.extra` holds what JSON can't say."""
        seed = None if self.request.seed is None else self.request.seed + self.index
        parameters = {**sampling_arguments(self.request.sampling, seed), "output_kind": _FINAL_ONLY}
        request = {"token_ids": self.request.prompt_ids, "sampling_params": parameters, "stream": False}
        return json.dumps(request).encode()

    def completion(self, content: Any, version: int) -> Completion:
        """The completion from the answer's JSON. Raises BrokenAnswerError when it holds none."""
        try:
            choice = content["choices"][0]
            token_ids = tuple(choice["token_ids"])
            logps = tuple(token["logprob"] for token in choice["logprobs"]["content"])
            finish_reason = choice["finish_reason"]
        except (TypeError, KeyError, IndexError) as error:
            raise BrokenAnswerError(f"not a completion: {str(content)[:300]}") from error
        if len(logps) != len(token_ids) or finish_reason in (None, "abort", "error"):
            raise BrokenAnswerError(f"{len(token_ids)} tokens, {len(logps)} log-probabilities, {finish_reason!r}")
        return Completion(
            group_id=self.request.group_id,
            index=self.index,
            prompt_ids=self.request.prompt_ids,
            token_ids=token_ids,
            logps=logps,
            finish_reason=cast(FinishReason, finish_reason),
            weight_version=version,
            submitted_at=self.submitted_at,
            finished_at=time.monotonic(),
        )


class BrokenAnswerError(Exception):
    """A server answered 200 without a whole completion."""


def jobs_of(request: RolloutRequest) -> list[Job]:
    """One job for each completion of a group."""
    now = time.monotonic()
    return [Job(request, index, now) for index in range(request.n)]
