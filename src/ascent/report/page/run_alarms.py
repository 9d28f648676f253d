"""A run's alarms: folded from its lines as `ascent alarms` does, with the samples that the run itself kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ascent.alarms.alarm import Alarm
from ascent.alarms.fold import Fold
from ascent.alarms.over_run import facts_of_run
from ascent.report.page.run_files import RunState, number, whole

LEVELS = ("critical", "warn", "info")


@dataclass(frozen=True, slots=True)
class ShownAlarm:
    """An alarm. `samples` are ids of completions that show it."""

    name: str
    level: str
    step: int
    since: int
    what: str
    sure: str
    mend: tuple[str, ...]
    samples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Judgement:
    """The gravest alarms first, the newest first among equals; rules that judged and found nothing; and those that
    could not judge, with the reason. `unread` says why some lines could not be judged at all, or is empty."""

    alarms: Sequence[ShownAlarm] = ()
    clear: Sequence[str] = ()
    not_judged: Sequence[tuple[str, str]] = ()
    unread: str = ""

    def count(self, level: str) -> int:
        """Alarms of a level."""
        return sum(alarm.level == level for alarm in self.alarms)


@dataclass(slots=True)
class RunAlarms:
    """Judges a run again and again, new lines only. Used by one thread at a time."""

    _fold: Fold | None = None
    _found: list[Alarm] = field(default_factory=list)
    _steps: int = 0
    _evaluations: int = 0
    _first: Any = None
    _unread: str = ""

    def judge(self, state: RunState) -> Judgement:
        """What the run's lines say up to now."""
        if self._fold is None or len(state.steps) < self._steps or state.steps[:1] != self._first:
            self._begin(state)
        fold = self._take(state)
        alarms = [_shown(alarm, state.alarms) for alarm in self._found]
        told = {(alarm.name, alarm.step) for alarm in alarms}
        alarms += [alarm for line in state.alarms if ((alarm := _from_line(line)).name, alarm.step) not in told]
        not_judged = [(each.name, each.why) for each in fold.not_judged()]
        silent = {alarm.name for alarm in alarms} | {name for name, _ in not_judged}
        return Judgement(
            _sorted(alarms),
            [name for name in fold.names() if name not in silent],
            not_judged,
            self._unread,
        )

    def _begin(self, state: RunState) -> None:
        facts, _ = facts_of_run(state.path)
        self._fold, self._found = Fold(facts), []
        self._steps = self._evaluations = 0
        self._first, self._unread = state.steps[:1], ""

    def _take(self, state: RunState) -> Fold:
        """Fold the new lines: an evaluation goes before the first step after it."""
        assert self._fold is not None
        for step in state.steps[self._steps :]:
            for line in state.evaluations[self._evaluations :]:
                if whole(line.get("step")) >= whole(step["step"]):
                    break
                self._fold.take_evaluation(line)
                self._evaluations += 1
            try:
                self._found += self._fold.take(step)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
                self._unread = f"step {step['step']}: {type(error).__name__}: {error}"[:200]
        self._steps = len(state.steps)
        return self._fold


def told_alarms(state: RunState) -> Judgement:
    """The alarms that the run itself kept, without judging its lines anew."""
    return Judgement(_sorted([_from_line(line) for line in state.alarms]))


def _sorted(alarms: Iterable[ShownAlarm]) -> list[ShownAlarm]:
    return sorted(alarms, key=lambda alarm: (LEVELS.index(alarm.level), -alarm.step))


def _shown(alarm: Alarm, kept: Sequence[Mapping[str, Any]]) -> ShownAlarm:
    samples = next(
        (_samples(line) for line in kept if line.get("name") == alarm.name and line.get("step") == alarm.step), ()
    )
    return ShownAlarm(alarm.name, alarm.level, alarm.step, alarm.since, alarm.what, alarm.sure, alarm.mend, samples)


def _from_line(line: Mapping[str, Any]) -> ShownAlarm:
    """An alarm that only the run's own file has, such as one of another release."""
    level, mend = line.get("level"), line.get("mend")
    return ShownAlarm(
        name=str(line.get("name", "")),
        level=level if level in LEVELS else "info",
        step=whole(line.get("step")),
        since=whole(line["since"] if number(line.get("since")) is not None else line.get("step")),
        what=str(line.get("what", "")),
        sure=str(line.get("sure", "")),
        mend=tuple(map(str, mend)) if isinstance(mend, list) else (),
        samples=_samples(line),
    )


def _samples(line: Mapping[str, Any]) -> tuple[str, ...]:
    evidence = line.get("evidence")
    return tuple(
        str(sample["sample_id"])
        for sample in (evidence if isinstance(evidence, list) else ())
        if isinstance(sample, dict) and sample.get("sample_id")
    )
