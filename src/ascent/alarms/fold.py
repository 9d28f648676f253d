"""The fold: lines of a run go in, in their order, and alarms come out, each once an episode.

It is the same while a run trains (a line at a time) and over an old run (all of them), and a run that is resumed folds
the lines that it has already: there is no other state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ascent.alarms.advice import advice
from ascent.alarms.alarm import SEVERITY, Alarm, Firing, Level, NotJudged
from ascent.alarms.facts import RunFacts
from ascent.alarms.line import Line
from ascent.alarms.rules.rule import FIRST_STEP, Rule
from ascent.alarms.rules.table import RULES

CLEAR_STEPS = 20  # that a rule judged, after which its next alarm is a new episode


@dataclass(slots=True)
class _Episode:
    """What has been told of a rule's present episode; None before the first and after each."""

    told: Level | None = None
    clear: int = 0
    on: bool = False


class Fold:
    """All rules over one run."""

    def __init__(self, facts: RunFacts, rules: Sequence[type[Rule]] = RULES) -> None:
        self._facts = facts
        self._rules = [rule(facts) for rule in rules]
        self._episodes = {rule.name: _Episode() for rule in self._rules}
        self._held_out: Mapping[str, float] | None = None
        self._ever: dict[str, Level] = {}

    def take_evaluation(self, values: Mapping[str, Any]) -> None:
        """A line of evaluations.jsonl. What it says of each held-out task is judged with the next step's line."""
        results = values.get("results")
        if isinstance(results, Mapping):
            rates = {task: result.get("sampled") for task, result in results.items() if isinstance(result, Mapping)}
            self._held_out = {task: float(rate) for task, rate in rates.items() if isinstance(rate, int | float)}

    def take(self, values: Mapping[str, Any]) -> list[Alarm]:
        """The alarms that begin, or get graver, with this line of metrics.jsonl; the gravest first. Raises ValueError
        for what is no line of a step."""
        line = Line.of(values if self._held_out is None else {**values, "held_out": self._held_out})
        self._held_out = None
        alarms = [alarm for rule in self._rules if (alarm := self._judge(rule, line)) is not None]
        return sorted(alarms, key=lambda alarm: -SEVERITY[alarm.level])

    def figures(self) -> dict[str, float]:
        """For trackers: `alarm/NAME` of every rule that has ever fired, 0 while its condition doesn't hold, else 1 for
        info, 2 for warn, 3 for critical."""
        return {
            f"alarm/{name}": float(SEVERITY[level]) if self._episodes[name].on else 0.0
            for name, level in self._ever.items()
        }

    def not_judged(self) -> list[NotJudged]:
        """The rules that could say nothing of the lines so far, and have not."""
        reasons = ((rule.name, rule.not_judged()) for rule in self._rules if rule.name not in self._ever)
        return [NotJudged(name, why) for name, why in reasons if why is not None]

    def names(self) -> list[str]:
        """Of all rules."""
        return [rule.name for rule in self._rules]

    def _judge(self, rule: Rule, line: Line) -> Alarm | None:
        if not rule.observes(line):
            return None
        firing = rule.judge(line)
        episode = self._episodes[rule.name]
        if firing is None or (line.step < FIRST_STEP and not rule.hard):
            episode.on = False
            episode.clear += 1
            if episode.clear >= CLEAR_STEPS:
                episode.told = None
            return None
        episode.on, episode.clear = True, 0
        if episode.told is not None and SEVERITY[firing.level] <= SEVERITY[episode.told]:
            return None
        episode.told = self._ever[rule.name] = firing.level
        return self._alarm(rule.name, firing, line.step)

    def _alarm(self, name: str, firing: Firing, step: int) -> Alarm:
        mend = advice(name, firing.figures, self._facts)
        since = max(firing.since, 1)
        return Alarm(name, firing.level, step, since, firing.what, firing.sure, mend, firing.figures)


def fold(
    lines: Iterable[Mapping[str, Any]], facts: RunFacts, evaluations: Sequence[Mapping[str, Any]] = ()
) -> tuple[list[Alarm], Fold]:
    """All alarms of a run's lines, and the fold after them. `evaluations` are the lines of evaluations.jsonl."""
    state, alarms, waiting = Fold(facts), [], list(evaluations)
    for values in lines:
        while waiting and waiting[0].get("step", 0) < values.get("step", 0):
            state.take_evaluation(waiting.pop(0))
        alarms += state.take(values)
    for values in waiting:
        state.take_evaluation(values)
    return alarms, state
