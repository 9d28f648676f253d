"""Sampling settings that narrow or bend the policy's distribution.

vLLM's log-probabilities of sampled tokens are those of the distribution that it drew from, after all of these; the
trainer's are those of the whole policy at its temperature. Their ratio, which importance sampling takes for the
mismatch of two implementations, is then too small by the probability that was cut away.
"""

from __future__ import annotations

from ascent.types import Sampling

# settings of vLLM's SamplingParams that reach it as `extra`, and the value with which they change nothing
_FURTHER = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": None,
    "allowed_token_ids": None,
    "bad_words": None,
    "min_tokens": 0,
    "structured_outputs": None,
}


def narrowing(sampling: Sampling) -> tuple[str, ...]:
    """`name=value` of each setting of `sampling` that does so."""
    own = {
        "top_p": (sampling.top_p, sampling.top_p < 1),
        "top_k": (sampling.top_k, sampling.top_k > 0),
        "min_p": (sampling.min_p, sampling.min_p > 0),
        "repetition_penalty": (sampling.repetition_penalty, sampling.repetition_penalty != 1),
    }
    found = [f"{name}={value}" for name, (value, narrows) in own.items() if narrows]
    found += [
        f"{name}={value}"
        for name, value in sampling.extra
        if name in _FURTHER and value not in (None, [], {}, _FURTHER[name])
    ]
    return tuple(found)
