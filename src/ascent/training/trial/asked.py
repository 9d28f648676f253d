"""What is tried, as it stands in the folder of the trial (`trial.json`), where its processes read it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from ascent.config import RunConfig
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunDirectory

# what a trial of a run doesn't do: nothing of it is kept, shown elsewhere, or measured on held-out tasks
_LEFT_OUT: dict[str, Any] = {
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "push_to_hub": False,
    "eval_strategy": "no",
    "eval_on_start": False,
    "report_to": "none",
}


@dataclass(frozen=True, slots=True)
class Trial:
    """At most `steps` steps of the run, at least one; none begins that would end after `until`. `worst`: then a step on
    a batch of the longest sequences. `dense`: what a token of a forward and backward pass without padding costs.
    `began`: when it was started. Times are seconds since the epoch, as of `time.time`."""

    steps: int
    until: float | None = None
    began: float = 0.0
    worst: bool = False
    dense: bool = False


def write(run: RunDirectory, trial: Trial) -> None:
    """Leave it in the folder, for the processes that are started there."""
    run_directory.write_json(run.trial, asdict(trial))


def read(run: RunDirectory) -> Trial:
    """What is to be tried in the folder."""
    return Trial(**json.loads(run.trial.read_text(encoding="utf-8")))


def tried_config(config: RunConfig) -> RunConfig:
    """The run's configuration less what a trial leaves out. Steps are the run's own: schedules aren't shortened."""
    tracking = config.tracking.model_copy(update={"report": False})
    return config.model_copy(update={"trainer": {**config.trainer, **_LEFT_OUT}, "tracking": tracking})
