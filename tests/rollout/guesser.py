"""A proposer for vLLM (`method: custom_class`) that guesses what a function says; for tests of what becomes of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar


class Guesser:
    """Guesses at most as many tokens as vLLM was told."""

    after: ClassVar[Callable[[tuple[int, ...]], int]] = staticmethod(lambda tokens: 0)  # the next token
    guesses: ClassVar[int] = 0  # made so far

    def __init__(self, vllm_config: Any) -> None:
        self._count = vllm_config.speculative_config.num_speculative_tokens
        self._most = vllm_config.model_config.max_model_len

    def load_model(self, *_: Any) -> None:
        """There is none."""

    def propose(
        self, sampled: Sequence[Sequence[int]], lengths: Any, tokens: Any, slot_mappings: Any = None
    ) -> list[list[int]]:
        """For each request of the batch; `tokens` (requests, length) are prompt and completion so far."""
        found = []
        for row, new in enumerate(sampled):
            text, guessed = tuple(int(token) for token in tokens[row, : lengths[row]]), list[int]()
            while new and len(guessed) < self._count and len(text) + len(guessed) < self._most:
                guessed.append(type(self).after((*text, *guessed)))
            type(self).guesses += len(guessed)
            found.append(guessed)
        return found
