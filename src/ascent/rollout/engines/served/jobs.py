"""Completions as requests to a server's `/inference/v1/generate` and back: token ids in, token ids out."""

from __future__ import annotations

import base64
import json
import secrets
import time
from dataclasses import dataclass
from typing import cast

import msgspec
import numpy as np

from ascent.rollout.in_vllm.compat import short_answers
from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.rollout.vllm_arguments import sampling_arguments
from ascent.types import Completion, FinishReason, Logps, RolloutRequest, TokenIds

# vLLM's RequestOutputKind.FINAL_ONLY: nothing is made of a completion before its end. Newer servers do so by
# themselves, 0.23 would put all tokens so far together at each step.
_FINAL_ONLY = 2


class _Token(msgspec.Struct, gc=False):
    token: str
    logprob: float | None


class _Logprobs(msgspec.Struct):
    content: list[_Token]


class _Choice(msgspec.Struct):
    token_ids: list[int]
    logprobs: _Logprobs
    finish_reason: str | None


class _Answer(msgspec.Struct):
    """What is read of an answer; the rest is passed over without making objects of it."""

    choices: list[_Choice]


_answers = msgspec.json.Decoder(_Answer)


@dataclass(eq=False, slots=True)
class Job:
    """One completion to be sampled; sampling it again gives the same."""

    request: RolloutRequest
    index: int
    submitted_at: float
    failures: int = 0  # answers of servers that tried and failed
    request_id: str = ""  # of the last attempt

    @property
    def tokens(self) -> int:
        """What it may cost: prompt and longest completion, where that is limited."""
        return len(self.request.prompt_ids) + (self.request.sampling.max_tokens or 0)

    def body(self, adapter: str | None = None) -> bytes:
        """The request's JSON, for one of the server's adapters where that is named. Raises TypeError when
        `Sampling.extra` holds what JSON can't say."""
        seed = None if self.request.seed is None else self.request.seed + self.index
        parameters = {**sampling_arguments(self.request.sampling, seed), "output_kind": _FINAL_ONLY}
        settings = msgspec.Raw(json.dumps(parameters).encode())  # msgspec would write a set as a list
        self.request_id = secrets.token_hex(8)
        asked = {"request_id": self.request_id, "token_ids": self.request.prompt_ids, "sampling_params": settings}
        if adapter is not None:
            asked["model"] = adapter
        return msgspec.json.encode({**asked, "stream": False})

    def completion(self, content: bytes, version: int, *, aborted: bool = False) -> Completion:
        """The completion from the answer's JSON, or with `aborted` perhaps the first part of one. Raises
        BrokenAnswerError when it holds none."""
        try:
            choice = _answers.decode(content).choices[0]
        except (msgspec.DecodeError, IndexError) as error:
            text = content[:300].decode("utf-8", "replace")
            raise BrokenAnswerError(f"not a completion ({error}): {text}") from error
        token_ids, logps, finish_reason = as_token_ids(choice.token_ids), _logps(choice), choice.finish_reason
        unexpected = (None, "error") if aborted else (None, "abort", "error")
        if len(logps) != len(token_ids) or finish_reason in unexpected:
            raise BrokenAnswerError(f"{len(token_ids)} tokens, {len(logps)} log-probabilities, {finish_reason!r}")
        return self._completion(token_ids, logps, cast(FinishReason, finish_reason), version)

    def nothing(self, version: int) -> Completion:
        """What there is of a completion that no server has, when it is broken off."""
        return self._completion(as_token_ids(()), as_logps(()), "abort", version)

    def _completion(self, token_ids: TokenIds, logps: Logps, finish_reason: FinishReason, version: int) -> Completion:
        return Completion(
            group_id=self.request.group_id,
            index=self.index,
            prompt_ids=self.request.prompt_ids,
            token_ids=token_ids,
            logps=logps,
            finish_reason=finish_reason,
            weight_version=version,
            submitted_at=self.submitted_at,
            finished_at=time.monotonic(),
        )


class BrokenAnswerError(Exception):
    """A server answered 200 without a whole completion."""


def _logps(choice: _Choice) -> Logps:
    """Of an answer's tokens, in the short form that was asked for, or in vLLM's own. Raises BrokenAnswerError."""
    content = choice.logprobs.content
    if len(content) == 1 and content[0].token.startswith(short_answers.MARK):
        try:
            packed = base64.b64decode(content[0].token.removeprefix(short_answers.MARK), validate=True)
            return as_logps(np.frombuffer(packed, "<f4"))
        except ValueError as error:
            raise BrokenAnswerError(f"not log-probabilities ({error}): {content[0].token[:300]}") from error
    return as_logps([token.logprob for token in content])


def jobs_of(request: RolloutRequest) -> list[Job]:
    """One job for each completion of a group."""
    now = time.monotonic()
    return [Job(request, index, now) for index in range(request.n)]
