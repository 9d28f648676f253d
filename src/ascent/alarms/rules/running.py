"""Is everything judged, and does all that runs at once have room?"""

from __future__ import annotations

from ascent.alarms.alarm import Firing
from ascent.alarms.facts import RunFacts
from ascent.alarms.line import Line
from ascent.alarms.rules.rule import Rule, percent
from ascent.alarms.sequential import Streak


class Preempted(Rule):
    """Sequences are thrown out of the engine in the middle, and computed again: the KV cache is too small."""

    name = "preempted"
    needs = ("engine.preemptions",)
    least = 5
    STEPS = 5

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._streak = Streak()

    def judge(self, line: Line) -> Firing | None:
        """See Rule."""
        count = line.number("engine.preemptions") or 0.0
        if self._streak.take(count > 0, line.step) < self.STEPS:
            return None
        return Firing(
            "warn",
            f"sequences were preempted in {self._streak.length} steps in a row ({count:.0f} now): the KV cache is too "
            "small for what runs at once",
            self._streak.since,
            "counted, not estimated",
            {"preemptions": count},
        )


class Unjudged(Rule):
    """Completions that no reward could be given for: they teach nothing, and cost what the others cost."""

    name = "unjudged"
    needs = ("signals/unscored", "signals/completions")
    least = 3
    SHARE, LEAST, GENERATIONS = 0.05, 10, 3

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
