"""What a token of training costs where nothing is wasted: a forward and backward pass of rows without padding."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from ascent import devices
from ascent.training.trial.found import Dense
from ascent.training.trial.worst_batch import stretched

_TOKENS = 4096  # about so many in a pass: enough that a larger one is no faster a token
_MOST_ROWS = 64
_REPEATS = 3


def dense_cost(trainer: Any, prompt: float, completion: float, repeats: int = _REPEATS) -> Dense:
    """The median seconds a token of a few passes of a trainer (TRL's, or Ascent's) over rows of random tokens, with the
    lengths of a step's mean row. The trainer's weights and gradients stay as they were before: it must have none."""
    lengths = max(1, round(prompt)), max(1, round(completion))
    rows = max(1, min(_MOST_ROWS, _TOKENS // sum(lengths)))
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    seconds = [_pass(trainer, rows, *lengths) for _ in range(repeats)]
    return Dense(statistics.median(seconds) / (rows * sum(lengths)), rows, *lengths)


def _pass(trainer: Any, rows: int, prompt: int, completion: int) -> float:
    device = trainer.accelerator.device
    vocabulary = int(trainer.model.config.get_text_config().vocab_size)

    def ids(columns: int) -> torch.Tensor:
        return torch.randint(vocabulary, (rows, columns), device=device)

    like = (trainer._buffered_inputs or [{}])[0]  # what else its loss needs: TRL's, of a generation
    batch = {
        **{name: stretched(name, value, rows, prompt, completion) for name, value in like.items()},
        "prompt_ids": ids(prompt),
        "prompt_mask": torch.ones(rows, prompt, dtype=torch.long, device=device),
        "completion_ids": ids(completion),
        "completion_mask": torch.ones(rows, completion, dtype=torch.long, device=device),
        "advantages": torch.randn(rows, device=device),
        "num_items_in_batch": torch.tensor(rows * completion, device=device),
    }
    devices.synchronize()
    began = time.perf_counter()
    trainer.accelerator.backward(trainer.compute_loss(trainer.model, batch))
    devices.synchronize()
    seconds = time.perf_counter() - began
    trainer.model.zero_grad()
    return seconds
