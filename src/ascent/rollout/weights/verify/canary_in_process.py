"""The canary of an engine in the trainer's process.

Nothing travels there, but weights may still not be what the engine computes with: an output head that the trainer
doesn't tie, a packed copy of before, adapters that don't merge.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ascent.rollout.engine import Canary, WeightMismatchError
from ascent.rollout.engines.scoring import score_in_process
from ascent.rollout.weights.verify.canary import CanaryTolerance, mean_difference


def prove(engine: Any, canary: Canary, tolerance: CanaryTolerance, max_model_len: int) -> None:
    """Raise WeightMismatchError when vLLM's idle `LLMEngine` gives the sequences other log-probabilities."""
    canary = _cut(canary, max_model_len - 1)  # one token must be sampled
    found = [each.logps.tolist() for each in score_in_process(engine, canary.sequences)]
    result = tolerance.check(mean_difference(canary, found), canary.trainer_dtype)
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
