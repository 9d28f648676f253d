"""Supervised training of the starter on noisy solutions."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_CLIMB = 22  # steps until the learning rate is at its peak
_PROMPT_WEIGHT = 0.1  # of a prompt token in the loss


@dataclass(frozen=True, slots=True)
class Schedule:
    """`steps` optimizer steps of `batch` examples; the learning rate climbs to its peak in the first steps and falls to
    nothing along half a cosine."""

    steps: int = 220
    batch: int = 64
    learning_rate: float = 4e-3


def warm_start(
    network: Any,
    tokenizer: Any,
    examples: Iterator[tuple[str, str]],
    schedule: Schedule,
    *,
    seconds: float = math.inf,
    told: Callable[[int, float], None] = lambda step, loss: None,
) -> int:
    """Train `network` in place on (prompt, completion) pairs, each completion followed by the end token.

    The loss counts completion and end token, and the prompt at a tenth of their weight: learning to predict the prompt
    as well makes the policy read it sooner. With `seconds` it ends after that time, if that is earlier, and the
    learning rate falls accordingly. `told` hears each step and its loss. Returns the number of steps made.
    """
    import torch

    optimizer = torch.optim.AdamW(network.parameters(), lr=schedule.learning_rate, weight_decay=0.0, betas=(0.9, 0.98))
    started = time.monotonic()
    network.train()
    for step in range(schedule.steps):
        done = max(step / schedule.steps, (time.monotonic() - started) / seconds)
        if done >= 1:
            return step
        rate = min((step + 1) / _CLIMB, 0.5 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = rate * schedule.learning_rate
        ids_BT, weights_BT = _batch(tokenizer, list(itertools.islice(examples, schedule.batch)))
        loss = _loss(network, ids_BT, weights_BT)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        told(step + 1, loss.item())
    return schedule.steps


def _batch(tokenizer: Any, pairs: list[tuple[str, str]]) -> tuple[Tensor, Tensor]:
    """Token ids padded on the right, and each token's weight in the loss (0 for padding), both (B, T)."""
    import torch

    ids, weights = [], []
    for prompt, completion in pairs:
        asked, answered = tokenizer(prompt)["input_ids"], tokenizer(completion)["input_ids"]
        ids.append([*asked, *answered, tokenizer.eos_token_id])
        weights.append([_PROMPT_WEIGHT] * len(asked) + [1.0] * (len(answered) + 1))
    longest = max(map(len, ids))
    pad = tokenizer.pad_token_id
    ids_BT = torch.tensor([row + [pad] * (longest - len(row)) for row in ids])
    return ids_BT, torch.tensor([row + [0.0] * (longest - len(row)) for row in weights])


def _loss(network: Any, ids_BT: Tensor, weights_BT: Tensor) -> Tensor:
    import torch

    logits_BTV = network(input_ids=ids_BT).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten(), reduction="none")
    weights = weights_BT[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()
