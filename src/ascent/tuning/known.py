"""What the ledger of a search says of its points, and what a model makes of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ascent.tuning.gains import Expected, Observation, expect
from ascent.tuning.ledger import Ledger, Tried
from ascent.tuning.space import Point, Space

SHORT, WHOLE = 0.25, 1.0  # the two rungs: what share of their length completions have
_FAILED = -0.7  # taken for a gain that wasn't measured: half the speed
_ERROR = {SHORT: 0.06, WHOLE: 0.03}  # of one probe, log of speed


@dataclass(frozen=True, slots=True)
class Known:
    """See above; asked anew each time, while the ledger grows."""

    space: Space
    ledger: Ledger

    def expected(self, points: Sequence[Point]) -> Expected:
        """What the model says of whole generations with these settings, relative to the reference's."""
        return expect(self.space.values, self.observations(), points)

    def measured(self) -> list[Point]:
        """The points with a speed, the fastest first: as far as they came, exact probes before others."""
        points = dict.fromkeys(each.point for each in self.ledger.tried if each.tokens_per_second is not None)
        return sorted(points, key=lambda point: -self.gain(point))

    def failed(self) -> dict[Point, Tried]:
        """Points whose engine failed, with the first failure."""
        found: dict[Point, Tried] = {}
        for each in self.ledger.tried:
            if each.why is not None:
                found.setdefault(each.point, each)
        return found

    def whole(self, point: Point) -> list[Tried]:
        """Whole probes of a point, those in an engine of its own settings alone where there are any."""
        found = [each for each in self.ledger.tried if each.point == point and each.share == WHOLE and speed_of(each)]
        return [each for each in found if each.exact] or found

    def speed(self, point: Point) -> float | None:
        """Tokens/s of whole generations (geometric mean); None where there was none."""
        found = [speed_of(each) for each in self.whole(point)]
        return statistics.geometric_mean(found) if found else None

    @property
    def reference(self) -> Point:
        """What gains are relative to: the configured settings, or the first that could be measured."""
        points = [each.point for each in self.ledger.tried if each.share == WHOLE and speed_of(each)]
        return self.space.base if not points or self.space.base in points else points[0]

    def gain(self, point: Point) -> float:
        """The log of the measured speed over the reference's, on the highest rung that both have; -inf for none."""
        for share in (WHOLE, SHORT):
            own, other = self._speeds(point, share), self._speeds(self.reference, share)
            if own and other:
                return statistics.fmean(map(math.log, own)) - statistics.fmean(map(math.log, other))
        return -math.inf

    def best(self) -> Point | None:
        """The fastest with a whole probe, else with any. One that had no engine of just its settings must be ahead of
        one that had by more than a probe's error."""

        def sure(point: Point) -> float:
            return self.gain(point) - (0.0 if self.whole(point)[0].exact else _ERROR[WHOLE])

        whole = [point for point in self.measured() if self.whole(point)]
        return max(whole, key=sure) if whole else next(iter(self.measured()), None)

    def _speeds(self, point: Point, share: float) -> list[float]:
        if share == WHOLE:
            return [speed_of(each) for each in self.whole(point)]
        return [
            speed_of(each)
            for each in self.ledger.tried
            if each.point == point and each.share == share and speed_of(each)
        ]

    def observations(self) -> list[Observation]:
        """The highest rung of every point; a failure is taken for a low speed, so that its neighbours are avoided."""
        found: list[Observation] = []
        failed = self.failed()
        for point in dict.fromkeys(each.point for each in self.ledger.tried):
            gain = self.gain(point)
            if gain == -math.inf:
                found += [Observation(point, _FAILED, 0.3)] if point in failed else []
                continue
            share = WHOLE if self.whole(point) else SHORT
            found.append(Observation(point, gain, _ERROR[share] / math.sqrt(len(self._speeds(point, share)))))
        return found


def speed_of(tried: Tried) -> float:
    """Tokens/s, or 0 where there is none."""
    return tried.tokens_per_second or 0.0
