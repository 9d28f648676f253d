"""The canary: a few fixed token sequences whose log-probabilities the engine must give as the trainer does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ascent.models.token_logps import token_logps
from ascent.rollout.engine import Canary

SEQUENCES, LONGEST = 4, 64
_SHORT = 16  # tokens of a sequence that doesn't come from a prompt: any server's context has room for it
_TEXTS = (
    "def add(first, second):\n    return first + second\n",
    "The answer to the question is a number between one and ten.",
    "for line in open(path):\n    print(line.strip())\n",
    "1 2 3 4 5 6 7 8 9 10 11 12",
)


def canary_sequences(
    prompts: Iterable[Sequence[int]], tokenizer: Any, config: Any, count: int = SEQUENCES
) -> tuple[tuple[int, ...], ...]:
    """`count` different sequences of at least two tokens, of whatever there is: the ends of the first prompts; where
    these are too few or too short, some plain texts; where the tokenizer makes too little of those, its vocabulary.

    `config` is the model's (of its text part): its vocabulary and its context limit what can be asked. Fewer sequences
    come back only for a vocabulary in which there are no more.
    """
    context = getattr(config, "max_position_embeddings", None) or LONGEST + 1
    longest = min(LONGEST, context - 1)  # a server adds a token of its own
    ends = [tuple(prompt[-longest:]) for prompt in prompts]
    if len(_told_apart(ends, count)) < count:
        short = min(_SHORT, longest)
        ends += [tuple(tokenizer(text, add_special_tokens=False)["input_ids"][:short]) for text in _TEXTS]
        ends += _of_vocabulary(tokenizer, config.vocab_size, short, count)
    return _told_apart(ends, count)


def _told_apart(sequences: Iterable[tuple[int, ...]], count: int) -> tuple[tuple[int, ...], ...]:
    """The first of them that differ and hold a token that can be predicted: one with others before it."""
    return tuple(dict.fromkeys(sequence for sequence in sequences if len(sequence) > 1))[:count]


def _of_vocabulary(tokenizer: Any, size: int, length: int, count: int) -> list[tuple[int, ...]]:
    """Tokens from all over the vocabulary, after the token that begins a text where there is one."""
    known = sorted(token for token in tokenizer.get_vocab().values() if token < size) or list(range(size))
    first = [token for token in (tokenizer.bos_token_id, tokenizer.eos_token_id) if token is not None][:1]
    sequences = []
    for number in range(1, count + 1):
        step = max(1, number * len(known) // 7)
        tokens = [known[(number + place * step) % len(known)] for place in range(max(2, length) - len(first))]
        sequences.append((*first, *tokens))
    return sequences


def measure(model: Any, sequences: tuple[tuple[int, ...], ...], dtype: str) -> Canary:
    """The log-probabilities that the model's present weights give to `sequences` (N of them, at most T tokens),
    computed in `dtype`.

    Collective with a sharded model. It runs on the device where the model is (the host, for a model that training will
    shard), and leaves the model in the mode that it found.
    """
    device = next(model.parameters()).device
    longest = max(len(sequence) for sequence in sequences)
    ids_NT = torch.zeros(len(sequences), longest, dtype=torch.long, device=device)
    mask_NT = torch.zeros_like(ids_NT)
    for row, sequence in enumerate(sequences):
        ids_NT[row, : len(sequence)] = torch.tensor(sequence, device=device)
        mask_NT[row, : len(sequence)] = 1
    training = model.training
    model.eval()
    try:
        logps_NT = token_logps(model, ids_NT, mask_NT, longest - 1).cpu()
    finally:
        model.train(training)
    return Canary(
        sequences,
        tuple(
            tuple(logps_T[: len(sequence) - 1].tolist()) for logps_T, sequence in zip(logps_NT, sequences, strict=True)
        ),
        dtype,
    )
