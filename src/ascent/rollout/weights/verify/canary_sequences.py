"""The canary: a few fixed token sequences whose log-probabilities the engine must give as the trainer does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ascent.rollout.engine import Canary

SEQUENCES, LONGEST = 4, 64


def canary_sequences(prompts: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The ends of the first prompts, where they are long enough to say something."""
    ends = dict.fromkeys(tuple(prompt[-LONGEST:]) for prompt in prompts if len(prompt) > 1)
    return tuple(ends)[:SEQUENCES]


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
        with torch.no_grad():
            logits_NTV = model(input_ids=ids_NT, attention_mask=mask_NT, use_cache=False).logits[:, :-1]
    finally:
        model.train(training)
    logps_NTV = logits_NTV.float().log_softmax(-1)
    logps_NT = logps_NTV.gather(2, ids_NT[:, 1:, None])[..., 0].cpu()
    return Canary(
        sequences,
        tuple(
            tuple(logps_T[: len(sequence) - 1].tolist()) for logps_T, sequence in zip(logps_NT, sequences, strict=True)
        ),
        dtype,
    )
