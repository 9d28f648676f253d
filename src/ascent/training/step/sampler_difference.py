"""Do the sampled completions have the log-probabilities that the trainer gives them? Where not, the run ends.

The canary of each weight update asks this of fixed sequences. This asks it of what is trained on, at no cost: both
log-probabilities of the completions are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ascent.rollout.engine import WeightMismatchError
from ascent.rollout.weights.verify.expected_differences import ExpectedDifference
from ascent.training.records.batch import BatchRecord
from ascent.training.step.agreement import Agreement


@dataclass(frozen=True, slots=True)
class Difference:
    """The sum of |sampler - trainer| over some tokens' log-probabilities, and how many tokens these are."""

    total: float
    tokens: int


class SamplerDifference:
    """Judges each generation. Collective over all ranks, which go on or end alike."""

    def __init__(
        self, expected: ExpectedDifference, precision: str, agreement: Agreement, tell: Callable[[str], None]
    ) -> None:
        """`precision` says in words what is compared; `tell` takes a warning, the first time one is due."""
        self._expected, self._precision = expected, precision
        self._agreement, self._tell = agreement, tell
        self._told = False

    def check(self, difference: Difference, step: int) -> None:
        """Judge what this rank's part of the step's generation shows, together with the other ranks'. See `judge`."""
        parts = self._agreement.ranks.exchange((difference.total, difference.tokens))
        self.judge(Difference(sum(total for total, _ in parts), sum(tokens for _, tokens in parts)), step)

    def judge(self, difference: Difference, step: int) -> None:
        """Warn of a suspicious difference, once, and raise WeightMismatchError on all ranks for a wrong one.

        `difference` is of all ranks, and the same on each.
        """
        if not difference.tokens:
            return
        mean = difference.total / difference.tokens
        text = (
            f"sampler and trainer give the sampled tokens log-probabilities that differ by {mean:.3g} on average "
            f"({difference.tokens} tokens of step {step}; {self._precision})"
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


def difference_of(output: Mapping[str, Any], batch: BatchRecord) -> Difference:
    """That of a rank's part of a generation, `output` of TRL's (B completions of at most C tokens). Only completions of
    the newest weights count: older ones differ rightly."""
    sampler_BC, trainer_BC = output.get("sampling_per_token_logps"), output.get("old_per_token_logps")
    if sampler_BC is None or trainer_BC is None:  # without importance sampling correction TRL doesn't take them
        return Difference(0.0, 0)
    counted_BC = output["completion_mask"].bool() & newest(batch).to(sampler_BC.device)[:, None]
    difference = (trainer_BC - sampler_BC).abs()[counted_BC]
    difference = difference[~difference.isnan()]  # vLLM could not score it, or the trainer itself is not finite
    total = float(difference.float().cpu().sum(dtype=torch.float64))  # NPUs have no float64
    return Difference(total, difference.numel())


def newest(batch: BatchRecord) -> torch.Tensor:
    """(B,) bool: which completions were sampled with the weights that are trained."""
    return torch.tensor([completion.weight_version == batch.step - 1 for completion in batch.completions])
