"""The form of a rule."""

from __future__ import annotations

import abc
from typing import ClassVar

from ascent.alarms.alarm import Firing
from ascent.alarms.facts import RunFacts
from ascent.alarms.line import Line

FIRST_STEP = 25  # of rules that aren't hard


class Rule(abc.ABC):
    """One alarm's condition, folded over the lines of a run in their order. All its state comes from these lines.

    `needs` are the figures (or objects) without which a line says nothing to it; `least` is how many lines with them it
    takes until it can say something. A `hard` rule speaks from the first step on, the others from step 25: what comes
    before is the warm-up, and the reference that curves are held against.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    least: ClassVar[int] = 1
    hard: ClassVar[bool] = False

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts
        self.observations = 0  # lines that it judged
        self._met: set[str] = set()

    def observes(self, line: Line) -> bool:
        """Whether the line says something to this rule; it is counted then, and `judge` is to be called."""
        here = {name for name in self.needs if line.has(name)}
        self._met |= here
        if len(here) < len(self.needs):
            return False
        self.observations += 1
        return True

    @abc.abstractmethod
    def judge(self, line: Line) -> Firing | None:
        """What the rule sees now that this line has been added; None while its condition doesn't hold."""

    def not_judged(self) -> str | None:
        """Why this rule could say nothing of the lines so far; None where it could."""
        missing = [name for name in self.needs if name not in self._met]
        if missing:
            return f"the run recorded no {' and no '.join(missing)}"
        if self.observations < self.least:
            return f"it takes {self.least} generations or steps to judge, and there are {self.observations}"
        return None


def percent(share: float) -> str:
    """A share as people read it."""
    return f"{share:.0%}" if share >= 0.1 or share == 0 else f"{share:.1%}"
