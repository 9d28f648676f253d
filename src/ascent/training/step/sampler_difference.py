"""Do the sampled completions have the log-probabilities that the trainer gives them? Where not, the run ends.

The canary of each weight update asks this of fixed sequences. This asks it of what is trained on, at no cost: TRL has
both log-probabilities of every completion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ascent.rollout.engine import WeightMismatchError
from ascent.rollout.weights.verify.expected_differences import ExpectedDifference
from ascent.training.records.batch import BatchRecord
from ascent.training.step.agreement import Agreement


class SamplerDifference:
    """Judges each generation. Collective over all ranks, which go on or end alike."""

    def __init__(
        self, expected: ExpectedDifference, precision: str, agreement: Agreement, tell: Callable[[str], None]
    ) -> None:
        """`precision` says in words what is compared; `tell` takes a warning, the first time one is due."""
        self._expected, self._precision = expected, precision
        self._agreement, self._tell = agreement, tell
        self._told = False

    def check(self, output: Mapping[str, Any], batch: BatchRecord) -> None:
        """Warn of a suspicious difference, once, and raise WeightMismatchError on all ranks for a wrong one.

        `output` is TRL's, of this rank's part of a generation (B completions of at most C tokens). Only completions of
        the newest weights count: older ones differ rightly.
        """
        total, count = _summed(output, batch)
        ranks = self._agreement.ranks
        sums = ranks.exchange((total, count))
        tokens = sum(there for _, there in sums)
        if not tokens:
            return
        mean = sum(there for there, _ in sums) / tokens
        text = (
            f"sampler and trainer give the sampled tokens log-probabilities that differ by {mean:.3g} on average "
            f"({tokens} tokens of step {batch.step}; {self._precision})"
        )
        if not mean <= self._expected.wrong:
            self._agreement.raise_on_all_ranks(
                WeightMismatchError(
                    f"{text}, where more than {self._expected.wrong:g} can't be rounding: the engine samples from "
                    "another policy than the one that is trained"
                )
            )
        if mean > self._expected.suspicious and not self._told:
            self._told = True
            self._tell(
                f"warning: {text}, where up to {self._expected.usual:g} is usual; beyond {self._expected.wrong:g} the "
                "run ends"
            )


def _summed(output: Mapping[str, Any], batch: BatchRecord) -> tuple[float, int]:
    """The sum of the differences of this rank's tokens, and their number."""
    sampler_BC, trainer_BC = output.get("sampling_per_token_logps"), output.get("old_per_token_logps")
    if sampler_BC is None or trainer_BC is None:  # without importance sampling correction TRL doesn't take them
        return 0.0, 0
    newest = [completion.weight_version == batch.step - 1 for completion in batch.completions]
    counted_BC = output["completion_mask"].bool() & torch.tensor(newest, device=sampler_BC.device)[:, None]
    difference = (trainer_BC - sampler_BC).abs()[counted_BC]
    difference = difference[~difference.isnan()]  # vLLM could not score it, or the trainer itself is not finite
    return float(difference.float().cpu().sum(dtype=torch.float64)), difference.numel()  # NPUs have no float64
