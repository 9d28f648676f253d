"""Pass rates over tasks, and how sure they are. Tasks are what is sampled: completions of one task are alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z = 1.959964  # the normal distribution's quantile for 95 %
_HALF = 0.475  # of the probability lies between the middle and the quantile
INTERVAL = "95 %, Wilson's at the effective number of tasks"


@dataclass(frozen=True, slots=True)
class Rate:
    """A mean over tasks with its 95 % interval."""

    mean: float
    low: float
    high: float
    tasks: int

    def __str__(self) -> str:
        return f"{self.mean:.1%} ({100 * self.low:.0f} to {self.high:.0%})"


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that at least one of `k` completions passes, from `samples` of which `passed` did: the unbiased
    estimator 1 - C(n - c, k) / C(n, k) of Chen et al., 2021 (https://arxiv.org/abs/2107.03374, section 2.1).

    Raises ValueError unless 1 <= k <= samples and 0 <= passed <= samples.
    """
    if not 1 <= k <= samples or not 0 <= passed <= samples:
        raise ValueError(f"pass@{k} of {passed} passes in {samples} samples can't be told")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def rate(values: Sequence[float], *, samples: int | None = None) -> Rate:
    """The mean of at least one value in [0, 1], one a task, with its 95 % interval.

    The interval is Wilson's score interval at the effective number of tasks, `mean (1 - mean) / variance of the mean`:
    for values of 0 and 1 that is the number of tasks, for pass rates of several samples it lies above. (Korn and
    Graubard, 1998, "Confidence intervals for proportions with small expected number of positive counts estimated from
    survey data".) It never leaves [0, 1], and is not empty where all values are equal. `samples` is the number of
    completions behind the values, beyond which the effective number can't go (default: the number of values).
    """
    n = len(values)
    mean = sum(values) / n
    variance = sum((value - mean) ** 2 for value in values) / n
    most = max(n, samples or n)
    effective = n if variance <= 0 or n < 2 else min(most, max(n, n * mean * (1 - mean) / variance))
    if effective > n:  # the variance itself is known from n tasks only
        effective = max(n, effective * (Z / t_quantile(n - 1)) ** 2)
    low, high = wilson(mean, effective)
    return Rate(mean, low, high, n)


def wilson(share: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share of `n` trials."""
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))


def t_quantile(degrees: int) -> float:
    """Student's t for 95 %: exact for 1 and 2 degrees of freedom, from 3 on right to 1 % (Abramowitz and Stegun,
    26.7.5)."""
    if degrees <= 2:
        return math.tan(math.pi * _HALF) if degrees <= 1 else 2 * _HALF * math.sqrt(2 / (1 - 4 * _HALF * _HALF))
    z, v = Z, degrees
    terms = (
        (z**3 + z) / (4 * v),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3),
    )
    return z + sum(terms)
