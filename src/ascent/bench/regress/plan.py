"""How the prompts are asked: in a model's tokens, with which sampling, in which batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ascent.bench.regress.prompts import Prompt
from ascent.errors import InputError
from ascent.training.sampling_check import prompt_ids
from ascent.types import Sampling

# Batches by which the same prompts are asked, a pass each: all at once, then few and many others beside them, in
# another order. What an engine computes depends on that within rounding, so passes show how large its rounding is.
PASSES: tuple[int | None, ...] = (None, 5, 11)
# Settings that a serving stack may lose: each is told apart from sampling without it.
SAMPLINGS: dict[str, Sampling] = {
    "temperature 0.7": Sampling(None, temperature=0.7),
    "top-p 0.7": Sampling(None, top_p=0.7),
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of each prompt. Lengths in tokens; `samples` completions of each sampling setting a run."""

    greedy_tokens: int = 32
    sampled_tokens: int = 16
    samples: int = 4
    seed: int = 42

    def sampling(self, name: str, eos_token_ids: Sequence[int]) -> Sampling:
        """One of `SAMPLINGS`."""
        return replace(SAMPLINGS[name], max_tokens=self.sampled_tokens, stop_token_ids=tuple(eos_token_ids))

    def greedy(self, eos_token_ids: Sequence[int]) -> Sampling:
        """The most likely token each time."""
        return Sampling(self.greedy_tokens, temperature=0.0, stop_token_ids=tuple(eos_token_ids))


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt in tokens. `reference` is a greedy completion that log-probabilities are measured of too; None: the
    run's own first."""

    prompt_ids: tuple[int, ...]
    continuation_ids: tuple[int, ...]
    reference: tuple[int, ...] | None = None

    def tokens(self, asked: Asked) -> int:
        """The longest that the engine must have room for, with the token that scoring adds."""
        return len(self.prompt_ids) + max(len(self.continuation_ids) + 1, asked.greedy_tokens + 1)


@dataclass(frozen=True, slots=True)
class Fitting:
    """The prompts that fit into a context, their questions, and the ids of those that don't fit."""

    prompts: tuple[Prompt, ...]
    questions: tuple[Question, ...]
    left_out: tuple[str, ...]


def questions_of(prompts: Sequence[Prompt], tokenizer: Any, asked: Asked, context: int) -> Fitting:
    """The prompts in a model's tokens, as chat messages when its tokenizer has a template. Raises InputError when none
    fits into `context` tokens."""
    kept: list[tuple[Prompt, Question]] = []
    left_out: list[str] = []
    for prompt in prompts:
        question = question_of(prompt, tokenizer)
        if question.tokens(asked) > context or not question.prompt_ids or not question.continuation_ids:
            left_out.append(prompt.id)
        else:
            kept.append((prompt, question))
    if not kept:
        raise InputError(
            f"none of {len(prompts)} prompts fits into the context of {context} tokens",
            f"Give shorter ones: --prompts FILE. A prompt also needs room for {asked.greedy_tokens + 1} tokens.",
        )
    return Fitting(tuple(prompt for prompt, _ in kept), tuple(question for _, question in kept), tuple(left_out))


def question_of(prompt: Prompt, tokenizer: Any) -> Question:
    """One prompt in tokens."""
    continuation = tokenizer(prompt.continuation, add_special_tokens=False)["input_ids"]
    return Question(prompt_ids(tokenizer, prompt.text), tuple(continuation))


def batches(count: int, number: int, seed: int) -> Iterator[list[int]]:
    """The places of `count` prompts in the batches of pass `number`, the same for every run."""
    size = PASSES[number]
    order = list(range(count))
    if size is not None:
        random.Random(seed + number).shuffle(order)
    for first in range(0, count, size or count):
        yield order[first : first + (size or count)]
