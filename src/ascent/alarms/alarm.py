"""What an alarm says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Level = Literal["info", "warn", "critical"]
SEVERITY: Mapping[Level, int] = {"info": 1, "warn": 2, "critical": 3}


@dataclass(frozen=True, slots=True)
class Firing:
    """What a rule sees in a step at which its condition holds. `what` is a sentence with the run's figures, `since` the
    first step that it rests on, `sure` says how often chance alone would do the same, `figures` are the figures again
    by name, for programs and for the advice."""

    level: Level
    what: str
    since: int
    sure: str
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """A completion that shows what an alarm is about. Its texts are a model's: hostile, and cut to a few thousand
    characters. `outcomes` is one word a test, `audit` those of an audit, `markers` what stands out in the program."""

    sample_id: str
    task_id: str
    step: int
    reward: float | None
    completion: str
    program: str
    outcomes: tuple[str, ...]
    audit: tuple[str, ...]
    markers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Alarm:
    """One episode of a rule, told at `step`. `mend` says what to change, the likeliest first; `evidence` are samples
    of the run that show it, where completions can."""

    name: str
    level: Level
    step: int
    since: int
    what: str
    sure: str
    mend: tuple[str, ...]
    figures: Mapping[str, float]
    evidence: tuple[Sample, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As it stands in alarms.jsonl."""
        return {"schema": "ascent.alarm/1", **asdict(self), "figures": dict(self.figures)}


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A rule that could say nothing of a run, and why."""

    name: str
    why: str
