"""What the canary is made of: the dataset's prompts, and whatever there is where those say nothing."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from ascent.rollout.weights.verify.canary_sequences import LONGEST, SEQUENCES, canary_sequences

pytestmark = pytest.mark.torch


class Tokenizer:
    """`texts` says how many tokens a text becomes, all of them the same one."""

    def __init__(self, vocabulary: int, texts: int = 0, bos: int | None = None, eos: int | None = None) -> None:
        self._size, self._texts = vocabulary, texts
        self.bos_token_id, self.eos_token_id = bos, eos

    def get_vocab(self) -> dict[str, int]:
        return {f"token {number}": number for number in range(self._size)}

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": [len(text) % max(1, self._size)] * self._texts}


def config(vocabulary: int, context: int | None = 512) -> Any:
    values = {"vocab_size": vocabulary} | ({} if context is None else {"max_position_embeddings": context})
    return SimpleNamespace(**values)


def test_the_ends_of_prompts_are_taken_where_they_are_enough() -> None:
    prompts = [[number] * 100 for number in range(8)]
    found = canary_sequences(prompts, Tokenizer(50), config(50))
    assert found == tuple((number,) * LONGEST for number in range(SEQUENCES))


@pytest.mark.parametrize("prompts", [[], [[5]], [[5], [5], [6]], [[]], [[1, 2], [1, 2]]])
@pytest.mark.parametrize("tokenizer", [Tokenizer(300, 9), Tokenizer(300, 1), Tokenizer(300, 0, bos=2), Tokenizer(3, 0)])
@pytest.mark.parametrize("context", [None, 3, 8, 4096])
def test_there_is_a_canary_for_any_dataset_and_tokenizer(
    prompts: list[list[int]], tokenizer: Tokenizer, context: int | None
) -> None:
    size = len(tokenizer.get_vocab())
    found = canary_sequences(prompts, tokenizer, config(size, context))
    assert len(found) == len(set(found)) >= min(SEQUENCES, size)
    assert found == canary_sequences(prompts, tokenizer, config(size, context)), "every rank makes the same"
    for sequence in found:
        assert 2 <= len(sequence) <= min(LONGEST, (context or 4096) - 1)
        if list(sequence) not in prompts:
            assert all(0 <= token < size for token in sequence)


def test_tokens_beyond_the_model_s_vocabulary_are_left_out() -> None:
    found = canary_sequences([], Tokenizer(300), config(20))
    assert all(token < 20 for sequence in found for token in sequence)


def test_random_vocabularies() -> None:
    draw = random.Random(0)
    for _ in range(300):
        size = draw.randrange(2, 400)
        special = draw.choice([None, draw.randrange(size)])
        tokenizer = Tokenizer(size, draw.randrange(3), bos=special, eos=draw.choice([None, 0]))
        found = canary_sequences([], tokenizer, config(draw.randrange(2, 500), draw.randrange(3, 200)))
        assert found
        assert all(len(sequence) > 1 for sequence in found)
