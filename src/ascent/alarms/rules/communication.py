"""Is more of a step communication than there should be?"""

from __future__ import annotations

from ascent.alarms.alarm import Firing
from ascent.alarms.facts import RunFacts
from ascent.alarms.line import Line
from ascent.alarms.rules.rule import Rule, percent
from ascent.alarms.sequential import Recent, Streak

_KINDS = {"gradients": "gradients_exposed", "gathers": "gathers", "weights": "weights"}


class Communication(Rule):
    """The share of the step that waits for communication is far above what was expected of this layout, or, where
    nobody has said what to expect, above a third."""

    name = "communication"
    needs = ("communication/share", "times.step")
    least = 10
    TIMES, MORE, UNEXPECTED, HALF, STEPS = 2.0, 0.1, 1 / 3, 0.5, 5

    def __init__(self, facts: RunFacts) -> None:
        super().__init__(facts)
        self._share = Recent(10)
        self._seconds = {kind: Recent(10) for kind in _KINDS}
        self._streak = Streak()

    def judge(self, line: Line) -> Firing | None:
        """See Rule."""
        self._share.take(line.number("communication/share") or 0.0)
        for kind, figure in _KINDS.items():
            self._seconds[kind].take(line.number(f"communication/{figure}") or 0.0)
        share, expected = self._share.median, self.facts.communication_share
        allowed = self.UNEXPECTED if expected is None else max(self.TIMES * expected, expected + self.MORE)
        if self._streak.take(share > allowed, line.step) < self.STEPS:
            return None
        seconds = {kind: recent.median for kind, recent in self._seconds.items()}
        largest = max(seconds, key=lambda kind: seconds[kind])
        words = "" if expected is None else f", and {percent(expected)} is what this layout should take"
        return Firing(
            "warn" if share > self.HALF else "info",
            f"{percent(share)} of a step waits for communication{words}; most of it {largest} "
            f"({seconds[largest]:.2g} s)",
            self._streak.since,
            f"a median of 10, in {self._streak.length} steps in a row",
            {"share": share, "allowed": allowed, **{f"seconds/{kind}": each for kind, each in seconds.items()}},
        )
