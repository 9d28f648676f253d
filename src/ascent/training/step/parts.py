"""Completions that are sampled in parts: broken off when a generation was closed, and gone on with in a later one.

An example: a completion of group 7-2 is broken off after 40 of at most 100 tokens, which weights of 7 optimizer steps
sampled, and ends in the next generation.

    the part      40 tokens, their log-probabilities, "abort"
    requests_of   the prompt and the 40 tokens are the prompt of request 7-2/3; at most 60 tokens, a seed of its own
    joined        of the 25 tokens that come: 65 tokens, weight_spans ((0, 7), (40, 8)), weight_version 7

Each token keeps the log-probability that its sampler gave it, so the importance ratio of every token is that of the
weights which sampled it. A part that goes on is sampled from exactly the distribution of a completion that was never
broken off, at the weights of its time; settings that look back over the completion's own tokens would not be
(`outlasting`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.training.step.groups import LocalGroup
from ascent.types import Completion, RolloutRequest, Sampling

# of vLLM's SamplingParams: what says the same of a completion's first tokens and of its last
_OUTLASTING = {
    "allowed_token_ids",
    "detokenize",
    "flat_logprobs",
    "ignore_eos",
    "logit_bias",
    "logprobs",
    "skip_clone",
    "skip_special_tokens",
    "spaces_between_special_tokens",
}
_MIN_TOKENS = "min_tokens"  # counts down as the longest completion does
# settings that say nothing when they are set so
_NEUTRAL: Mapping[str, Any] = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "n": 1}


def outlasting(sampling: Sampling) -> list[str]:
    """The names of further settings (`Sampling.extra`) that would mean something else, or that nobody knows to mean the
    same, when a completion is sampled in parts: penalties of its own tokens, grammars, strings that end it."""
    return [
        name
        for name, value in sampling.extra
        if name not in _OUTLASTING and name != _MIN_TOKENS and value not in (None, [], _NEUTRAL.get(name))
    ]


def requests_of(group: LocalGroup) -> list[tuple[RolloutRequest, Completion | None]]:
    """What is asked of the engine for a group, each with the part that it goes on with: the group's request, or one for
    each completion that was broken off.

    A completion that goes on after `k` tokens has a seed of its own, the first 48 bits of SHA-256 of "SEED/k", where
    SEED is the completion's: with the same seed its next token would be drawn as its first one was.
    """
    if group.begun is None:
        return [(group.request, None)]
    return [(_request(group.request, part), part) for part in group.begun.parts]


def joined(part: Completion, rest: Completion) -> Completion:
    """A completion of its first part and what was sampled after it, whose versions are optimizer steps. It is as long
    in sampling as both together."""
    begin = len(part.token_ids)
    spans = list(part.weight_spans or ([(0, part.weight_version)] if begin else []))
    if len(rest.token_ids) and (not spans or spans[-1][1] != rest.weight_version):
        spans.append((begin, rest.weight_version))
    versions = [version for _, version in spans] or [rest.weight_version]
    return replace(
        rest,
        group_id=part.group_id,
        index=part.index,
        prompt_ids=part.prompt_ids,
        token_ids=as_token_ids(np.concatenate([part.token_ids, rest.token_ids])),
        logps=as_logps(np.concatenate([part.logps, rest.logps])),
        weight_version=min(versions),
        weight_spans=tuple(spans) if len(spans) > 1 else (),
        submitted_at=rest.submitted_at - (part.finished_at - part.submitted_at),
    )


def _request(request: RolloutRequest, part: Completion) -> RolloutRequest:
    sampled = len(part.token_ids)
    seed = None if request.seed is None else request.seed + part.index
    if seed is not None and sampled:
        seed = int.from_bytes(hashlib.sha256(f"{seed}/{sampled}".encode()).digest()[:6])
    return RolloutRequest(
        f"{request.group_id}/{part.index}",
        (*part.prompt_ids, *part.token_ids.tolist()),
        1,
        _after(request.sampling, sampled),
        seed,
    )


def _after(sampling: Sampling, sampled: int) -> Sampling:
    """The settings for what comes after so many tokens."""
    longest = (
        None if sampling.max_tokens is None else max(1, sampling.max_tokens - sampled)
    )  # a resumed run may allow less
    extra = tuple((name, max(0, value - sampled) if name == _MIN_TOKENS else value) for name, value in sampling.extra)
    return replace(sampling, max_tokens=longest, extra=extra)
