"""How far a trained policy has gone from the one that it began as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def divergence(policy: Any, start: Any, samples: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float:
    """KL(policy ‖ start) in nats a completion, by the mean of the difference of log-probabilities.

    `samples` are (prompt ids, completion ids) that the policy, or one an optimizer step before it, has sampled.
    """
    differences = [
        float(_logp(policy, prompt, completion) - _logp(start, prompt, completion)) for prompt, completion in samples
    ]
    return sum(differences) / len(differences)


def _logp(model: Any, prompt: Sequence[int], completion: Sequence[int]) -> Tensor:
    ids_1T = torch.tensor([[*prompt, *completion]], device=model.device)
    logits_TV = model(input_ids=ids_1T).logits[0, len(prompt) - 1 : -1].float()
    answers_T1 = ids_1T[0, len(prompt) :, None]
    return torch.log_softmax(logits_TV, -1).gather(-1, answers_T1).sum()
