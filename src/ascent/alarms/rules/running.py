"""Does the run go on as fast as it did, and is everything judged?"""

from __future__ import annotations

import statistics

from ascent.alarms.alarm import Firing
from ascent.alarms.facts import RunFacts
from ascent.alarms.line import Line
from ascent.alarms.rules.rule import Rule, percent
from ascent.alarms.sequential import Recent, Reference, Streak

_PHASES = ("generate", "reward_exposed", "logps", "update", "sync")


class Slower(Rule):
    """A phase of the step takes longer for the same work than it did.

    Seconds for a completion's tokens (of rewards: for a completion), median of 10 steps, against the reference. Where
    all phases are slower alike, something else is at work on the machine, which is told as what it is. A phase counts
    only where its delay is felt in the step; `programs` is the sandbox's own time, which may hide beside sampling.
    """

    name = "slower"
    needs = ("times.step", "completions/mean_length")
    least = 40
    TIMES, ALIKE, FELT, STEPS, PREEMPTED = 2.0, 1.5, 0.15, 5, 5

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        names = (*_PHASES, "programs")
        self._usual = {name: Reference() for name in names}
        self._usual_step = Reference()
        self._recent = {name: Recent(10) for name in names}
        self._streaks = {name: Streak() for name in (*names, "all")}
        self._preempted = Streak()

    def judge(self, line: Line) -> Firing | None:
        """See Rule."""
        self._usual_step.take(line.number("times.step") or 0.0)
        for name, seconds in self._costs(line).items():
            self._usual[name].take(seconds)
            self._recent[name].take(seconds)
        preempted = self._preempted.take((line.number("engine.preemptions") or 0.0) > 0, line.step)
        found = self._slower(line) if self._usual_step.value else None
        if found is None and preempted >= self.PREEMPTED:
            return Firing(
                "warn",
                f"sequences were preempted in {preempted} steps in a row: the KV cache is too small for them all",
                self._preempted.since,
                "counted, not estimated",
                {"preemptions": line.number("engine.preemptions") or 0.0},
            )
        return found

    def _costs(self, line: Line) -> dict[str, float]:
        """Seconds of each phase for the work of this step; only those of steps that sampled, which is what `needs`
        asks for."""
        mean = line.number("completions/mean_length") or 0.0
        length = max((mean + (line.number("completions/max_length") or mean)) / 2, 1.0)  # the longest is waited for
        costs = {}
        for phase in _PHASES:
            seconds = line.number(f"times.{phase}") or 0.0
            costs[phase] = seconds / (length if phase in ("generate", "logps", "update") else 1.0)
        count, programs = line.number("signals/completions"), line.number("signals/sandbox_seconds")
        if programs is None:
            programs = line.number("times.reward_total") or 0.0
        costs["programs"] = programs / (count or 1.0)
        return costs

    def _slower(self, line: Line) -> Firing | None:
        usual = {name: reference.value for name, reference in self._usual.items() if reference.value}
        if not usual:
            return None
        ratios = {name: self._recent[name].median / value for name, value in usual.items() if value}
        felt = self._felt(line, ratios)
        found = None
        for name, ratio in sorted(ratios.items(), key=lambda each: -each[1]):
            others = [
                other for each, other in ratios.items() if each not in (name, "programs") and felt.get(each, 0) > 0
            ]
            alike = max(1.0, statistics.median(others)) if others else 1.0
            apart = ratio > self.TIMES and ratio > self.ALIKE * alike and felt[name] >= self.FELT
            if self._streaks[name].take(apart, line.step) >= self.STEPS and found is None:
                found = self._told(line, name, ratio, felt[name])
        whole = [ratio for name, ratio in ratios.items() if felt[name] > 0.05]
        alike = bool(whole) and min(whole) > self.TIMES
        if self._streaks["all"].take(alike, line.step) >= self.STEPS and found is None:
            found = Firing(
                "info",
                f"all phases of the step take {statistics.median(whole):.1f} times as long as at first: "
                "other work on this machine, or its clock",
                self._streaks["all"].since,
                f"medians of 10, in {self._streaks['all'].length} steps in a row",
                {"times": statistics.median(whole)},
            )
        return found

    def _felt(self, line: Line, ratios: dict[str, float]) -> dict[str, float]:
        """The seconds that each phase takes, as a share of the usual step; of programs, the sandbox's seconds."""
        step = self._usual_step.value or 1.0
        seconds = {name: line.number(f"times.{name}") or 0.0 for name in _PHASES}
        seconds["programs"] = self._recent["programs"].median * (line.number("signals/completions") or 1.0)
        return {name: seconds[name] / step for name in ratios}

    def _told(self, line: Line, name: str, ratio: float, felt: float) -> Firing:
        sleeping = line.share("signals/marker/sleeps") or 0.0
        names = {"generate": "sampling", "reward_exposed": "waiting for rewards", "logps": "log-probabilities"}
        names["programs"] = "running the programs"
        return Firing(
            "warn",
            f"{names.get(name, name)} takes {ratio:.1f} times as long as at first for the same work"
            + (f"; {percent(sleeping)} of the programs sleep" if sleeping else ""),
            self._streaks[name].since,
            f"a median of 10, in {self._streaks[name].length} steps in a row; other phases are not slower alike",
            {"times": ratio, "share_of_step": felt, f"phase/{name}": 1.0, "sleeping": sleeping},
        )


class Unjudged(Rule):
    """Completions that no reward could be given for: they teach nothing, and cost what the others cost."""

    name = "unjudged"
    needs = ("signals/unscored", "signals/completions")
    least = 3
    SHARE, LEAST, GENERATIONS = 0.05, 5, 3

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._recent: list[tuple[float, float]] = []
        self._streak = Streak()

    def judge(self, line: Line) -> Firing | None:
        """See Rule."""
        counts = (line.number("signals/unscored") or 0.0, line.number("signals/completions") or 0.0)
        self._recent = [*self._recent[1 - self.GENERATIONS :], counts]
        unscored, of = (sum(column) for column in zip(*self._recent, strict=True))
        enough = len(self._recent) == self.GENERATIONS and unscored >= self.LEAST
        if not self._streak.take(enough and unscored > self.SHARE * of, line.step):
            return None
        sandbox = line.share("signals/unjudged") or 0.0
        return Firing(
            "warn",
            f"{percent(unscored / of)} of the completions of {self.GENERATIONS} generations have no reward "
            f"({unscored:.0f} of {of:.0f}); the sandbox could not judge {percent(sandbox)} of the newest",
            self._streak.since,
            "counted, not estimated",
            {"unscored_share": unscored / of, "unjudged_share": sandbox},
        )
