"""The search: short probes of many settings, whole ones of the better, several of the best.

Successive halving (Jamieson and Talwalkar 2016, in the asynchronous form of Li et al. 2020) with two rungs: a probe
whose completions have a quarter of their length, and the whole generation; a third of what was tried on the first rung
comes to the second. Which setting is tried next is said by the model of `gains.py`: the largest expected improvement a
second, where a start that a setting needs counts as seconds; first among points that differ from the best in a few
settings. A probe that takes much longer than the best one did is broken off. At the end the best settings and the
configured ones each get an engine that is started as a run's would be.

Everything follows from what stands in the ledger, so a search that was killed goes on where it was.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ascent.errors import InputError
from ascent.tuning.known import SHORT, WHOLE, Known, speed_of
from ascent.tuning.ledger import Ledger, Tried
from ascent.tuning.probe import Measured, TrialError
from ascent.tuning.space import Point, Space

REPEATS, _REPEATS_LEAST = 5, 2  # probes of each finalist
_LEAST_SECONDS, _MOST = 2.0, 5  # probes are repeated until they took so long, or are so many
_WORTH = 0.002  # log of speed: what is expected to gain less isn't tried
_ETA = 3  # of the halving: one of so many comes to the next rung
_NEAR = 3  # settings in which a point differs from the best so far, as long as such points are worth it
_FINALISTS = 2  # beside the configured settings
_HOPELESS = 1.6  # times the best one's seconds
_END = 0.4  # of the budget, at most, that three probes of each finalist are kept for; else it is one
_FAILURES = 4  # starts that fail before anything was measured
_FIRST_GUESS = {True: 15.0, False: 60.0}  # eager: seconds of a start, until one was seen


class Engines(Protocol):
    """What the search measures with; one engine stands at a time."""

    def open(self, built: Point) -> None:
        """Start an engine in the place of the one that stands. Raises TrialError."""
        ...

    def probe(self, point: Point, share: float, until: float | None) -> Measured:
        """One generation with limits of `point`, whose completions have `share` of their length, broken off after
        `until` seconds. Raises TrialError; then no engine stands."""
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """What is being tried, for who watches. `best` is the speed of the best settings so far, in tokens/s."""

    what: str
    spent: float
    best: float | None
    best_settings: str


@dataclass(slots=True)
class Search:
    """A search while it runs, and what came of it. `budget` is in seconds, of which `beside` are spent otherwise than
    the ledger says; `clock` tells seconds."""

    space: Space
    engines: Engines
    ledger: Ledger
    budget: float
    watch: Callable[[Step], None] = lambda step: None
    clock: Callable[[], float] = time.monotonic
    beside: float = 0.0
    built: Point | None = None  # of the engine that stands
    known: Known = field(init=False)
    out_of_budget: bool = False  # what could have been tried wasn't for want of seconds

    def __post_init__(self) -> None:
        """What the ledger has is known."""
        self.known = Known(self.space, self.ledger)

    def run(self) -> None:
        """Search until the budget is spent or nothing is expected to gain. Raises InputError when the budget is too
        small for one probe, or no engine starts."""
        base = self.space.base
        if not self._measure(base, SHORT) and not self._measure(base, SHORT, exact=True):
            self._rescue()
        else:
            self._measure(base, WHOLE)
        while (chosen := self._next()) is not None:
            self._measure(*chosen)
        self._finish()

    def aside(self, point: Point, measure: Callable[[], Measured]) -> float | None:
        """Seconds of another generation with these settings, which isn't one of the search's; None where the budget
        doesn't reach, or it failed."""
        begun = self.clock()
        opens = self.built is None or not _within(point, self.built)
        if self._spent() + self._cost(point, WHOLE) > self.budget:
            return None
        try:
            if opens:
                self.built = None
                self.engines.open(point)
                self.engines.probe(point, SHORT, None)
                self.built = point
            seconds = measure().seconds
        except TrialError:
            self.built = None
            return None
        self.beside += self.clock() - begun
        return seconds

    # ---- what next ------------------------------------------------------------------------------------------------

    def _next(self) -> tuple[Point, float] | None:
        """The next probe; None when the rest of the budget is for the end, or nothing is expected to gain."""
        left = self.budget - self._spent() - self._cost_of_end()
        ranked = self.known.measured()
        failed = self.known.failed()
        places = math.ceil(len(ranked) / _ETA)
        if sum(1 for point in ranked if self.known.whole(point)) <= places:
            for point in ranked[:places]:
                if not self.known.whole(point) and point not in failed and self._cost(point, WHOLE) <= left:
                    return point, WHOLE
        known = {*ranked, *failed}
        fresh = [point for point in self.space.points if point not in known]
        if not fresh:
            return None
        best = max(ranked, key=self.known.gain, default=self.space.base)
        improvement = self.known.expected(fresh).improvement(max(0.0, self.known.gain(best)))
        costs = np.array([self._cost(point, SHORT) for point in fresh])
        worth = np.where(improvement >= _WORTH, improvement / costs, 0.0)
        self.out_of_budget = bool(np.any((worth > 0) & (costs > left)))
        worth = np.where(costs <= left, worth, 0.0)
        near = np.array([len(point.changed(best)) <= _NEAR for point in fresh])
        for allowed in (np.where(near, worth, 0.0), worth):
            if np.max(allowed) > 0:
                return fresh[int(np.argmax(allowed))], SHORT
        return None

    def _cost(self, point: Point, share: float) -> float:
        """Seconds that a probe is expected to take, with the start that it needs."""
        start = 0.0 if self.built is not None and _within(point, self.built) else self._start(point)
        return start + self._probe_seconds(share)

    def _probe_seconds(self, share: float) -> float:
        """Of the reference."""
        own = [each.seconds for each in self.ledger.tried if each.share == share and each.seconds and not each.cut]
        if own:
            return statistics.median(own)
        return self._probe_seconds(SHORT) / SHORT if share == WHOLE and self.ledger.tried else 5.0

    def _start(self, point: Point) -> float:
        eager = point.enforce_eager
        seen = [each.start for each in self.ledger.tried if each.start and each.point.enforce_eager == eager]
        return statistics.fmean(seen) if seen else _FIRST_GUESS[point.enforce_eager]

    def _cost_of_end(self) -> float:
        """Of an engine for the best settings with three probes, and of one for the configured ones where none was."""
        best = self.known.best()
        if best is None:
            return 0.0
        costs = [
            self._cost_of_exact(best, repeats) + self._cost_of_exact(self.space.base, repeats) for repeats in (3, 1)
        ]
        return costs[0] if costs[0] < _END * self.budget else costs[1]

    def _cost_of_exact(self, point: Point, repeats: int) -> float:
        missing = repeats - self._exact_probes(point)
        if missing <= 0:
            return 0.0
        start = 0.0 if self.built == point else self._start(point)
        return start + missing * self._probe_seconds(WHOLE)

    # ---- measuring ------------------------------------------------------------------------------------------------

    def _measure(self, point: Point, share: float, exact: bool = False) -> bool:
        """One probe, unless the ledger has it; whether it has a speed."""
        if not exact and any(each.point == point and each.share == share for each in self.ledger.tried):
            return True
        failed = self.known.failed()
        if point in failed:
            return False
        begun = self.clock()
        asked = built = point if exact else self.space.built_for(point, failed)
        start: float | None = None
        self._tell(point, share)
        try:
            if self.built is None or (self.built != point if exact else not _within(point, self.built)):
                self.built = None
                self.engines.open(built)
                start = self.clock() - begun
                self.engines.probe(built, SHORT, self._left(begun))  # what is done once, at first, isn't counted
                self.built = built
            asked = point
            if self._really_left(begun) <= 0:
                self._refuse_small_budget(begun)
            left = self._left(begun)
            found = self._probe(point, share, min(left, self._patience(share)))
        except TrialError as error:
            self.built = None
            cost = self.clock() - begun
            self.ledger.add(Tried(asked, share, exact, cost, start=start, why=error.why, text=error.text))
            return False
        cost, exact = self.clock() - begun, self.built == point
        if found.cut and found.seconds >= left:
            self._refuse_small_budget(begun)
            self.ledger.add(Tried(point, share, exact, cost, cut=True, start=start))
            return False
        speed = self._bound(share, found) if found.cut else found.tokens_per_second
        self.ledger.add(Tried(point, share, exact, cost, speed, found.seconds, found.cut, start))
        return True

    def _probe(self, point: Point, share: float, until: float) -> Measured:
        """One probe; of short ones several, and the median of them."""
        found = [self.engines.probe(point, share, until)]
        while not found[-1].cut and len(found) < _MOST and sum(each.seconds for each in found) < _LEAST_SECONDS:
            found.append(self.engines.probe(point, share, until))
        return sorted(found, key=lambda each: (each.cut, each.seconds))[len(found) // 2]

    def _bound(self, share: float, found: Measured) -> float:
        """Tokens/s that a probe which was broken off would have had at most."""
        tokens = max(
            each.seconds * speed_of(each) for each in self.ledger.tried if each.share == share and each.seconds
        )
        return tokens / found.seconds

    def _refuse_small_budget(self, begun: float) -> None:
        """Raise InputError where the budget ends before any probe did."""
        if self.known.measured():
            return
        spent = self._spent() + self.clock() - begun
        raise InputError(
            f"--budget {self.budget:.0f}s is too small for one probe: after {spent:.0f} s, most of which the start "
            "of an engine takes, a quarter of a generation was not done",
            f"Give some minutes, such as --budget {max(5, math.ceil(self.budget / 10))}m, or a smaller generation "
            "(trainer.per_device_train_batch_size, trainer.max_completion_length).",
        )

    def _left(self, begun: float) -> float:
        """Seconds of the budget, at least one: an engine that has begun is asked."""
        return max(1.0, self._really_left(begun))

    def _really_left(self, begun: float) -> float:
        return self.budget - self._spent() - (self.clock() - begun)

    def _spent(self) -> float:
        return self.ledger.spent + self.beside

    def _patience(self, share: float) -> float:
        """After how many seconds a probe is hopeless."""
        done = [each.seconds for each in self.ledger.tried if each.share == share and each.seconds and not each.cut]
        return _HOPELESS * min(done) if done else math.inf

    def _rescue(self) -> None:
        """The configured settings can't be measured: find some that can, as unlike those that failed as there are."""
        while len(failed := self.known.failed()) < _FAILURES and not self.known.measured():
            fresh = [point for point in self.space.points if point not in failed]
            if not fresh or self.budget - self._spent() < 0:
                break
            unlike = max(fresh, key=lambda point: min(len(point.changed(each)) for each in failed))
            self._measure(unlike, SHORT, exact=True)
        measured = self.known.measured()
        if not measured:
            first = next(iter(failed.values()))
            raise InputError(
                f"no engine could be measured, with {len(failed)} settings that have little in common. With the "
                f"first ({first.point.told(self.space.base)}): {first.why}: {first.text}",
                "Does `ascent generate MODEL` sample? `ascent doctor --run` looks at the machine.",
            )
        self._measure(measured[0], WHOLE)

    def _finish(self) -> None:
        """Engines with just the settings of the best and of the configured, as long as the budget allows."""
        ranked = [
            point for point in self.known.measured() if point not in self.known.failed() and point != self.space.base
        ]
        ranked.sort(key=lambda point: not self.known.whole(point))  # those that came so far first
        finalists = [*ranked[:1], self.space.base, *ranked[1:_FINALISTS]]
        for count in range(len(finalists), 0, -1):
            for repeats in range(REPEATS, 0, -1):
                costs = sum(self._cost_of_exact(point, repeats) for point in finalists[:count])
                if costs <= self.budget - self._spent() and (repeats >= _REPEATS_LEAST or count == 1):
                    self._repeat(finalists[:count], repeats)
                    return

    def _repeat(self, points: Sequence[Point], repeats: int) -> None:
        for point in points:
            for _ in range(repeats - self._exact_probes(point)):
                if not self._measure(point, WHOLE, exact=True):
                    break

    def _exact_probes(self, point: Point) -> int:
        return len([each for each in self.known.whole(point) if each.exact])

    def _tell(self, point: Point, share: float) -> None:
        best = self.known.best()
        speed = None if best is None else self.known.speed(best)
        settings = "" if best is None else best.told(self.space.base)
        much = "" if share == WHOLE else ", a quarter of the lengths"
        self.watch(Step(f"{point.told(self.space.base)}{much}", self._spent(), speed, settings))


def _within(point: Point, built: Point) -> bool:
    """Whether an engine that was built for `built` can be measured with this point's limits."""
    alike = point.engine == built.engine
    return (
        alike
        and point.max_num_seqs <= built.max_num_seqs
        and point.max_num_batched_tokens <= built.max_num_batched_tokens
    )
