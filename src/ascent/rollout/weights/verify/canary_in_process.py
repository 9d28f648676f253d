"""The canary of an engine in the trainer's process.

Nothing travels there, but weights may still not be what the engine computes with: an output head that the trainer
doesn't tie, a packed copy of before, adapters that don't merge.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ascent.rollout.engine import Canary, WeightMismatchError
from ascent.rollout.weights.verify.canary import CanaryTolerance, mean_difference


def prove(engine: Any, canary: Canary, tolerance: CanaryTolerance, max_model_len: int) -> None:
    """Raise WeightMismatchError when vLLM's idle `LLMEngine` gives the sequences other log-probabilities."""
    canary = _cut(canary, max_model_len - 1)  # one token must be sampled
    result = tolerance.check(mean_difference(canary, _prompt_logps(engine, canary.sequences)), canary.trainer_dtype)
    if not result.agrees:
        raise WeightMismatchError(
            f"after the weight update the engine computes otherwise than the trainer: log-probabilities of known "
            f"sequences differ by {result.mean:.4g} on average, where {result.allowed:.4g} is allowed. Either vLLM "
            "doesn't take over what this training changes, or it keeps something of the old weights"
        )


def _cut(canary: Canary, longest: int) -> Canary:
    return replace(
        canary,
        sequences=tuple(sequence[:longest] for sequence in canary.sequences),
        logps=tuple(logps[: longest - 1] for logps in canary.logps),
    )


def _prompt_logps(engine: Any, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """The log-probability of each token but the first of each sequence, after those before it."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    asked = SamplingParams(
        max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
    )
    for place, sequence in enumerate(sequences):
        engine.add_request(f"canary-{place}", {"prompt_token_ids": list(sequence)}, asked)
    found: dict[str, list[float]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                found[output.request_id] = [
                    math.nan if at is None or token not in at else float(at[token].logprob)
                    for token, at in zip(output.prompt_token_ids[1:], (output.prompt_logprobs or ())[1:], strict=False)
                ]
    nothing = [math.nan]
    return [(found.get(f"canary-{place}") or nothing * (len(sequence) - 1)) for place, sequence in enumerate(sequences)]
