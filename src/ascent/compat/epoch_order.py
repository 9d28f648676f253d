"""TRL 1.16 begins with the first epoch's order of prompts again when a training is resumed in a later epoch.

`RepeatSampler` draws the order of each epoch from a generator of its own, which is seeded when the training begins;
transformers skips the batches of the epoch that it resumes in, but the epochs before it have drawn nothing. A resumed
training then samples other prompts than the uninterrupted one.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState
from trl.trainer.utils import RepeatSampler


class OrderOfLaterEpochs(TrainerCallback):
    """Lets the sampler of a resumed training draw the orders of the epochs that were trained before. Streamed datasets
    have no such sampler, and a new training has no such epochs."""

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, train_dataloader: Any = None, **_: Any
    ) -> None:
        """See TrainerCallback."""
        sampler = _sampler_of(train_dataloader)
        if sampler is not None and sampler.shuffle:
            for _epoch in range(int(state.epoch or 0)):
                torch.randperm(sampler.num_samples, generator=sampler.generator)


def _sampler_of(loader: Any) -> RepeatSampler | None:
    """Beneath what accelerate wraps around it."""
    while loader is not None and not isinstance(loader, RepeatSampler):
        beneath = (getattr(loader, name, None) for name in ("batch_sampler", "sampler"))
        loader = next((each for each in beneath if each is not None), None)
    return loader
