"""Statistics over a series that is looked at again after each value: when is a change more than chance?

For shares of groups there is an e-CUSUM, which bounds false alarms whatever the distribution. Curves of a training move
when all is well, and their noise is not known beforehand: there a rule asks for several things at once, a fixed
reference, an effect that matters, persistence, and a second witness.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_SKIPPED, _TAKEN = 5, 20  # observations: the reference is the median of numbers 6 to 25


@dataclass(slots=True)
class ECusum:
    """Has the mean of values in 0..1 risen above `bound`?

        S <- max(0, S) + ln(1 + bet (x - bound));   alarm while S > ln(limit)

    While E[x | what was before] <= bound, each factor has expectation at most 1, and it takes `limit` values on average
    until an alarm: the e-detector of Shin, Ramdas and Rinaldo (2024). `bet` is the share that is staked: larger finds
    large rises sooner.
    """

    bound: float = 0.1
    bet: float = 3.0
    limit: float = 1e6
    log_evidence: float = 0.0
    began: int = 0  # the step since which the evidence has been above 0

    def take(self, values: Iterable[float], step: int) -> bool:
        """Whether there is an alarm after these values of a step."""
        for value in values:
            if self.log_evidence <= 0.0:
                self.log_evidence, self.began = 0.0, step
            self.log_evidence += math.log1p(self.bet * (value - self.bound))
        return self.log_evidence > math.log(self.limit)


@dataclass(slots=True)
class Reference:
    """The median of observations 6 to 25: what was usual before anything could go wrong slowly, and after a warm-up.
    `value` is None until then."""

    value: float | None = None
    _seen: list[float] = field(default_factory=list)

    def take(self, value: float) -> None:
        """The next observation; without effect once the reference stands."""
        if self.value is None:
            self._seen.append(value)
            if len(self._seen) == _SKIPPED + _TAKEN:
                self.value = statistics.median(self._seen[_SKIPPED:])
                self._seen.clear()


@dataclass(slots=True)
class Streak:
    """How many steps in a row something has been so, and since which one."""

    length: int = 0
    since: int = 0

    def take(self, holds: bool, step: int) -> int:
        """The length of the streak that this step belongs to; 0 where it doesn't hold."""
        if not holds:
            self.length = 0
        else:
            self.since = step if not self.length else self.since
            self.length += 1
        return self.length


class Recent:
    """The last values of a series."""

    def __init__(self, most: int) -> None:
        self._values: deque[float] = deque(maxlen=most)

    def take(self, value: float) -> Recent:
        """The next value."""
        self._values.append(value)
        return self

    @property
    def full(self) -> bool:
        """Whether there are as many as are kept."""
        return len(self._values) == self._values.maxlen

    @property
    def values(self) -> Sequence[float]:
        """From the oldest to the newest."""
        return list(self._values)

    @property
    def median(self) -> float:
        """Of at least one value."""
        return statistics.median(self._values)

    @property
    def mean(self) -> float:
        """Of at least one value."""
        return sum(self._values) / len(self._values)


@dataclass(frozen=True, slots=True)
class Change:
    """How far a mean has moved, with the standard error of that."""

    size: float
    error: float

    @property
    def z(self) -> float:
        """In standard errors; a move without any spread is infinitely sure, and no move is 0."""
        if self.error > 0:
            return self.size / self.error
        return 0.0 if self.size == 0 else math.copysign(math.inf, self.size)

    @property
    def upper(self) -> float:
        """The upper end of the 95 % interval."""
        return self.size + 1.96 * self.error


def change(before: Sequence[float], after: Sequence[float]) -> Change:
    """The difference of two means, `after` less `before`, of at least two values each, with Welch's standard error."""
    (mean_before, variance_before), (mean_after, variance_after) = _moments(before), _moments(after)
    error = math.sqrt(variance_before / len(before) + variance_after / len(after))
    return Change(mean_after - mean_before, error)


def paired_change(pairs: Sequence[tuple[float, float]]) -> Change:
    """The mean of `after` less `before` over at least two pairs of them."""
    mean, variance = _moments([after - before for before, after in pairs])
    return Change(mean, math.sqrt(variance / len(pairs)))


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """Mean and variance of at least two values, in plain floats: `statistics` counts in fractions, which is slow, and
    fails where these are too large."""
    mean = sum(values) / len(values)
    return mean, sum((value - mean) * (value - mean) for value in values) / (len(values) - 1)
