"""The alarms of a run that trains: each step's line goes through the fold as soon as it is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ascent.alarms.alarm import Alarm
from ascent.alarms.evidence import evidence
from ascent.alarms.facts import RunFacts, accelerator_of, expected_communication, facts_of, model_config_of
from ascent.alarms.fold import Fold, fold
from ascent.alarms.showing import alarm_text
from ascent.config import RunConfig
from ascent.tracking.run_directory import RunDirectory, append_json_line, read_json_lines
from ascent.training.records.recorder import EvaluationRecord, RunRecorder, StepRecord

_log = logging.getLogger(__name__)
_SHOWN = 1  # samples of an alarm on the terminal; all of them stand in alarms.jsonl


class LiveAlarms:
    """Watches a run's recorder (rank 0). Each alarm is told once an episode, and kept in alarms.jsonl with its samples.

    The state is a fold over the lines that the run has already, so a run that is resumed goes on with it, and what was
    told isn't told again.
    """

    def __init__(self, run: RunDirectory, facts: RunFacts, tell: Callable[[str], None]) -> None:
        """`tell` prints a text; `heard` is given each new alarm."""
        self._run, self._tell = run, tell
        self.heard: Callable[[Alarm], None] = lambda alarm: None
        evaluations = read_json_lines(run.evaluations)
        self._fold: Fold | None
        before, self._fold = fold(read_json_lines(run.metrics), facts, evaluations)
        told = {(line.get("name"), line.get("step")) for line in read_json_lines(run.alarms)}
        for alarm in before:  # such as those of a run of an earlier release
            if (alarm.name, alarm.step) not in told:
                self._keep(alarm)

    def step(self, record: StepRecord) -> Mapping[str, float]:
        """Judge a step whose line has been written; the figures `alarm/NAME` for trackers."""
        for alarm in self._judge(record):
            shown = self._keep(alarm)
            self._tell(alarm_text(shown, samples=_SHOWN))
            self.heard(shown)
        return {} if self._fold is None else self._fold.figures()

    def evaluation(self, record: EvaluationRecord) -> None:
        """An evaluation's line has been written; the next step is judged with it."""
        if self._fold is not None:
            self._fold.take_evaluation(record.to_json())

    def _judge(self, record: StepRecord) -> list[Alarm]:
        """What the fold says. A fault of its own must not end a training: it is told, and the run goes on without."""
        if self._fold is None:
            return []
        try:
            return self._fold.take(record.to_json())
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            self._tell(
                f"warning: alarms can't judge step {record.step} ({type(error).__name__}: {error}); the run goes on "
                f"without them. ascent alarms --debug {self._run.path} shows where."
            )
            self._fold = None
            return []

    def _keep(self, alarm: Alarm) -> Alarm:
        try:
            alarm = replace(alarm, evidence=evidence(alarm, self._run.rollouts))
        except (OSError, ValueError, KeyError, TypeError) as error:  # an alarm without samples is still one
            _log.warning("no samples for alarm %s: %s: %s", alarm.name, type(error).__name__, error)
        append_json_line(self._run.alarms, alarm.to_json())
        return alarm


def watch(recorder: RunRecorder, config: RunConfig, model: Path, tell: Callable[[str], None]) -> LiveAlarms | None:
    """Judge what this recorder is told from now on; None where it isn't the first process's, which alone has the steps.
    `model` is the folder of the run's model."""
    if recorder.rank:
        return None
    run = recorder.run.path
    facts = facts_of(config, model_config_of(model), accelerator_of(run), expected_communication(run))
    alarms = LiveAlarms(recorder.run, facts, tell)
    recorder.watchers.append(alarms.step)
    recorder.evaluation_watchers.append(alarms.evaluation)
    return alarms
