"""Does each phase of a step take as long as it did for the same work?"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from ascent.alarms.alarm import Firing
from ascent.alarms.facts import RunFacts
from ascent.alarms.line import Line
from ascent.alarms.rules.rule import Rule, percent
from ascent.alarms.sequential import Recent, Reference, Streak

_PHASES = {  # by its name in `times`; `programs` is the sandbox's own time, which may hide beside sampling
    "generate": "sampling",
    "reward_exposed": "waiting for rewards",
    "logps": "computing log-probabilities",
    "update": "the update",
    "sync": "moving weights",
    "programs": "running the programs",
}


@dataclass(slots=True)
class _Pace:
    """Seconds of a phase: a step's own, and those for a unit of work; what was usual, and medians of 10."""

    usual_seconds: Reference = field(default_factory=Reference)
    usual_cost: Reference = field(default_factory=Reference)
    seconds: Recent = field(default_factory=lambda: Recent(10))
    cost: Recent = field(default_factory=lambda: Recent(10))

    def take(self, seconds: float, work: float) -> None:
        self.usual_seconds.take(seconds)
        self.usual_cost.take(seconds / work)
        self.seconds.take(seconds)
        self.cost.take(seconds / work)

    @property
    def for_the_same_work(self) -> float:
        """How many times as long it takes for the same work."""
        return self.cost.median / self.usual_cost.value if self.usual_cost.value else 1.0

    @property
    def slowdown(self) -> float:
        """The same; where there is less work than there was, what doesn't depend on it weighs more, and the seconds
        themselves count."""
        whole = self.seconds.median / self.usual_seconds.value if self.usual_seconds.value else 1.0
        return min(self.for_the_same_work, whole)


class Slower(Rule):
    """A phase of the step takes longer for the same work than it did, while others do not.

    Where all phases are slower alike, something else is at work on the machine, which is told as what it is. A phase
    counts only where it is a part of the step that is felt.
    """

    name = "slower"
    needs = ("times.step", "completions/mean_length")
    least = 40
    TIMES, THAN_OTHERS, FELT, STEPS = 2.0, 1.5, 0.15, 5

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._usual_step, self._usual_distinct, self._usual_taught = Reference(), Reference(), Reference()
        self._paces = {name: _Pace() for name in _PHASES}
        self._streaks = {name: Streak() for name in _PHASES}
        self._all = Streak()

    def judge(self, line: Line) -> Firing | None:
        """See Rule."""
        self._usual_step.take(line.number("times.step") or 0.0)
        work = self._work(line)
        for name, pace in self._paces.items():
            pace.take(_seconds(line, name), work.get(name, 1.0))
        usual = self._usual_step.value
        if not usual:
            return None
        slowdowns = {name: pace.slowdown for name, pace in self._paces.items()}
        felt = {name: pace.seconds.median / usual for name, pace in self._paces.items()}
        apart = {name: self._is_apart(name, felt) for name in _PHASES}
        lengths = {name: self._streaks[name].take(apart[name], line.step) for name in _PHASES}
        worst = max(_PHASES, key=lambda name: (lengths[name] >= self.STEPS, slowdowns[name]))
        if lengths[worst] >= self.STEPS:
            return self._told(worst, slowdowns[worst], felt[worst], line)
        return self._all_alike([slowdowns[name] for name in _PHASES if felt[name] > 0.05], line.step)

    def _work(self, line: Line) -> dict[str, float]:
        """How much each phase has to do. Of sampling, the longest is waited for. Equal completions are computed and
        judged once, and groups without signal not trained on: where fewer are so than there were, more is done."""
        mean = line.number("completions/mean_length") or 0.0
        length = max((mean + (line.number("completions/max_length") or mean)) / 2, 1.0)
        more = _more(self._usual_distinct, line.number("signals/distinct_share") or 1.0)
        taught = _more(self._usual_taught, max(1.0 - (line.number("frac_reward_zero_std") or 0.0), 0.01))
        return {
            "generate": length,
            "reward_exposed": more,
            "logps": length * more * taught,
            "update": length * more * taught,
        }

    def _is_apart(self, name: str, felt: Mapping[str, float]) -> bool:
        others = [other for other in _PHASES if other not in (name, "programs") and felt[other] > 0.02]
        alike = statistics.median([self._paces[other].for_the_same_work for other in others] or [1.0])
        least = max(self.TIMES, self.THAN_OTHERS * alike)
        return self._paces[name].slowdown > least and felt[name] >= self.FELT

    def _told(self, name: str, slowdown: float, felt: float, line: Line) -> Firing:
        sleeping = line.share("signals/marker/sleeps") or 0.0
        return Firing(
            "warn",
            f"{_PHASES[name]} takes {slowdown:.1f} times as long as at first for the same work"
            + (f"; {percent(sleeping)} of the programs sleep" if sleeping else ""),
            self._streaks[name].since,
            f"a median of 10, in {self._streaks[name].length} steps in a row; other phases are not slower alike",
            {"times": slowdown, "share_of_step": felt, f"phase/{name}": 1.0, "sleeping": sleeping},
        )

    def _all_alike(self, slowdowns: list[float], step: int) -> Firing | None:
        if self._all.take(bool(slowdowns) and min(slowdowns) > self.TIMES, step) < self.STEPS:
            return None
        times = statistics.median(slowdowns)
        return Firing(
            "info",
            f"all phases take {times:.1f} times as long as at first: other work on this machine, or its clock",
            self._all.since,
            f"medians of 10, in {self._all.length} steps in a row",
            {"times": times},
        )


def _more(usual: Reference, share: float) -> float:
    """How many times as much a share is as its reference; 1 where it is less."""
    usual.take(share)
    return max(1.0, share / (usual.value or share))


def _seconds(line: Line, name: str) -> float:
    if name != "programs":
        return line.number(f"times.{name}") or 0.0
    programs = line.number("signals/sandbox_seconds")
    return programs if programs is not None else line.number("times.reward_total") or 0.0
