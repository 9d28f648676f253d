"""How far log-probabilities may differ without a change: learned from the runs of the old version.

What an engine computes differs a little with what else is in its batch, and on accelerators from time to time. The
record has that noise: each pass of each run against the mean of all others. A comparison allows several times the
largest that was seen, and never less than the precision itself leaves open, since other kernels of the same precision
round otherwise even where one version's runs agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

MARGIN = 4.0  # times the largest noise that was seen


class Noisy(Protocol):
    """A prompt's record, as far as noise goes."""

    @property
    def noise_mean(self) -> float:
        """Mean |difference| over tokens, of the pass where it is largest."""
        ...

    @property
    def noise_largest(self) -> float:
        """Largest |difference| of one token."""
        ...


@dataclass(frozen=True, slots=True)
class Tolerance:
    """In nats: what the mean over a prompt's tokens, and a single token, may differ by."""

    mean: float
    largest: float

    @property
    def near_tie(self) -> float:
        """Two tokens whose log-probabilities lie so near may change places: each may move by `largest`."""
        return 2 * self.largest

    def to_json(self) -> dict[str, Any]:
        """For a report."""
        return {"mean": self.mean, "largest": self.largest, "near_tie": self.near_tie}


# What two implementations of one precision differ by, for small dense models: measured between batches of one engine
# and between engines (docs/regress.md).
_LEAST = {
    "float32": Tolerance(4e-6, 2e-5),
    "float16": Tolerance(1e-3, 1e-2),
    "bfloat16": Tolerance(8e-3, 8e-2),
}


def learned(prompts: Iterable[Noisy], dtype: str) -> Tolerance:
    """What the record of an engine that computes in `dtype` allows. Noise is pooled over prompts: a prompt of few
    tokens may have shown less than there is."""
    least = _LEAST.get(dtype, _LEAST["bfloat16"])
    found = list(prompts)
    mean = max((prompt.noise_mean for prompt in found), default=0.0)
    largest = max((prompt.noise_largest for prompt in found), default=0.0)
    return Tolerance(max(least.mean, MARGIN * mean), max(least.largest, MARGIN * largest))
