"""`ascent alarms RUN`: the fold over a run directory, finished, stopped or still training, of this release or older."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ascent import config
from ascent.alarms.alarm import Alarm, NotJudged
from ascent.alarms.evidence import evidence
from ascent.alarms.facts import RunFacts, accelerator_of, expected_communication, facts_of, model_config_of
from ascent.alarms.fold import fold
from ascent.alarms.showing import alarm_text
from ascent.errors import InputError


@dataclass(frozen=True, slots=True)
class AlarmsReport:
    """What a run's lines say: the alarms in the order of their steps, the rules that found nothing (`clear`), those
    that could not judge, and what else is to be known about the reading (`notes`)."""

    run: Path
    steps: int
    alarms: tuple[Alarm, ...]
    clear: tuple[str, ...]
    not_judged: tuple[NotJudged, ...]
    notes: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether no alarm is above info."""
        return all(alarm.level == "info" for alarm in self.alarms)

    def to_text(self) -> str:
        """For a person."""
        parts = [f"{self.run}: {self.steps} steps, {_counted(len(self.alarms), 'alarm')}"]
        parts += [f"note: {note}" for note in self.notes]
        parts += [alarm_text(alarm) for alarm in self.alarms]
        if self.clear:
            parts.append(f"no alarm: {', '.join(self.clear)}")
        if self.not_judged:
            parts.append("not judged:\n" + "\n".join(f"  {each.name}: {each.why}" for each in self.not_judged))
        return "\n\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        return {
            "schema": "ascent.alarms/1",
            "run": str(self.run),
            "steps": self.steps,
            "good": self.good,
            "alarms": [alarm.to_json() for alarm in self.alarms],
            "clear": list(self.clear),
            "not_judged": {each.name: each.why for each in self.not_judged},
            "notes": list(self.notes),
        }


def judge_run(run: Path) -> AlarmsReport:
    """Fold the lines of a run directory, and find samples that show each alarm.

    Raises InputError for a folder without metrics.jsonl, and for lines that are not what a run writes. What else can't
    be read is noted: without config.yaml, rules that need a setting take TRL's default or judge by the figures alone.
    """
    metrics, evaluations = run / "metrics.jsonl", run / "evaluations.jsonl"
    if not run.is_dir():
        raise InputError(f"{run}: no such folder", "Give a run directory such as runs/NAME.")
    if not metrics.is_file():
        raise InputError(
            f"{run}: no metrics.jsonl in it: not a run directory, or no step has ended yet",
            "Give a folder such as runs/NAME.",
        )
    facts, notes = facts_of_run(run)
    lines = _lines(metrics, notes)
    with _understanding(metrics):
        alarms, state = fold(lines, facts, _lines(evaluations, notes) if evaluations.is_file() else ())
    shown = tuple(_with_evidence(alarm, run / "rollouts", notes) for alarm in alarms)
    not_judged = state.not_judged()
    silent = {alarm.name for alarm in alarms} | {each.name for each in not_judged}
    clear = tuple(name for name in state.names() if name not in silent)
    return AlarmsReport(run, len(lines), shown, clear, tuple(not_judged), tuple(notes))


def facts_of_run(run: Path) -> tuple[RunFacts, list[str]]:
    """What rules need to know of a run beside its lines, and notes on what could not be found out."""
    try:
        settings, _ = config.load(run / "config.yaml")
    except InputError as error:
        return RunFacts(), [f"the run's settings are not known ({error.message.partition(chr(10))[0]})"]
    model = model_config_of(Path(settings.model.path))
    return facts_of(settings, model, accelerator_of(run), expected_communication(run)), []


def _lines(path: Path, notes: list[str]) -> list[Mapping[str, Any]]:
    """The whole lines of a file; that the last one was cut short by a kill, or is being written, is noted."""
    with _understanding(path):
        *whole, rest = path.read_text(encoding="utf-8").split("\n")
        if rest.strip():
            notes.append(f"the last line of {path.name} is not whole and is left out")
        return [_parsed(line, number) for number, line in enumerate(whole, 1) if line.strip()]


def _parsed(line: str, number: int) -> Mapping[str, Any]:
    try:
        parsed: Mapping[str, Any] = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number} is not JSON: {error.msg}") from error
    return parsed


def _with_evidence(alarm: Alarm, rollouts: Path, notes: list[str]) -> Alarm:
    try:
        return replace(alarm, evidence=evidence(alarm, rollouts))
    except (OSError, ValueError, KeyError, TypeError) as error:  # a cut or foreign parquet file
        notes.append(f"no samples for {alarm.name}: {type(error).__name__}: {error}")
        return alarm


@contextlib.contextmanager
def _understanding(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise InputError(
            f"{path} is not what a run writes: {what}",
            "Move the line that doesn't belong there out of the file.",
        ) from error


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
