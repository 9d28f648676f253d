"""The bound of a step: what is left of it when nothing is done that can be left out.

    sampling, as it was measured
    + seconds a token of a forward and backward pass without padding
      * tokens that carry gradient: of each group with signal the prompt once, and its different completions whose
        advantage isn't zero
    + the optimizer's step + the way of the weights to the engine

So rewards are hidden behind sampling, and no log-probabilities are computed in passes of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

SMALLEST_ADVANTAGE = 1e-6  # below it, it is 0 but for rounding


@dataclass(frozen=True, slots=True)
class Needed:
    """Tokens of one generation that carry gradient, every prompt and every different completion of it counted once."""

    prompt: int
    completion: int

    @property
    def tokens(self) -> int:
        """Of both."""
        return self.prompt + self.completion


def needed(rows: Iterable[tuple[Any, Any, bool]]) -> Needed:
    """Of rows: the token ids of prompt and completion (NumPy arrays of one dtype), and whether it carries gradient."""
    prompts: dict[bytes, int] = {}
    completions: dict[tuple[bytes, bytes], int] = {}
    for prompt_P, completion_C, carries in rows:
        if carries:
            prompt = prompt_P.tobytes()
            prompts[prompt] = len(prompt_P)
            completions[prompt, completion_C.tobytes()] = len(completion_C)
    return Needed(sum(prompts.values()), sum(completions.values()))


def bound_seconds(*, generate: float, per_token: float, tokens: float, optimizer: float, sync: float) -> float:
    """Seconds of the step that the bound allows; the arguments are seconds, but for `tokens`."""
    return generate + per_token * tokens + optimizer + sync
