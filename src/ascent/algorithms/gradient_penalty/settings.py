"""What the gradient penalty is set to. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Form = Literal["norm", "squared", "share"]
Parameters = Literal["all", "without_embeddings", "norms"]


@dataclass(frozen=True, slots=True)
class PenaltySettings:
    """The settings of `ascent.algorithms.gpro.GPRO`, as they hold: `strength` is α of `norm`, γ of `squared`, the share
    of `share`."""

    form: Form
    strength: float
    radius: Literal["auto"] | float
    parameters: Parameters
    every: int
    fraction: float
