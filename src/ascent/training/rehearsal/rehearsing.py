"""`ascent train --rehearse`: from a configuration to what its rehearsal says."""

from __future__ import annotations

import time
from pathlib import Path

from ascent.alarms.facts import accelerator_of, facts_of, model_config_of
from ascent.config import RunConfig
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunDirectory
from ascent.training.rehearsal.figures import lengths_of, signal_of, times_of
from ascent.training.rehearsal.judging import concerns
from ascent.training.rehearsal.report import Rehearsal
from ascent.training.rehearsal.samples import choose
from ascent.training.trial.asked import Trial
from ascent.training.trial.found import FILE as FOUND
from ascent.training.trial.found import Tried
from ascent.training.trial.starting import start_trial, why_it_failed

FILE = "rehearsal.json"
SECONDS = 120.0
_STEPS = 8  # more of them would say little more
_FOR_STEPS = 0.75  # of the time; the rest is for the worst batch


def folder_name(folder: Path, name: str) -> str:
    """A name in `folder` that no run and no earlier rehearsal has."""
    wanted, number = f"{name}-rehearsal", 1
    while (folder / wanted).exists():
        number += 1
        wanted = f"{name}-rehearsal-{number}"
    return wanted


def rehearse(
    config: RunConfig,
    run: RunDirectory,
    *,
    seconds: float = SECONDS,
    processes: int = 1,
    launcher: str = "local",
    debug: bool = False,
) -> Rehearsal:
    """Rehearse a run of `config` in the folder `run`, and keep what it says there. A step that has begun is ended, and
    one is made however long it takes; otherwise it takes about `seconds`.

    Raises InputError where the run can't begin.
    """
    began = time.time()
    trial = Trial(steps=_STEPS, until=began + _FOR_STEPS * seconds, worst=True)
    tried = start_trial(config, trial, run, processes=processes, launcher=launcher, debug=debug)
    if tried.failed and not tried.lines:
        if tried.found.refused:
            (run.path / FOUND).unlink()  # nothing was tried: the folder needn't stay
        raise why_it_failed(tried, run, "the rehearsal")
    found = rehearsal_of(config, run.path, tried, time.time() - began)
    run_directory.write_json(run.path / FILE, found.to_json())
    return found


def rehearsal_of(config: RunConfig, folder: Path, tried: Tried, seconds: float) -> Rehearsal:
    """What a trial of `config`, which took `seconds`, says of the run."""
    tracking, found = config.tracking, tried.found
    times_evaluated = 2 + (max(0, found.total_steps - 1) // tracking.eval_every if tracking.eval_every else 0)
    evaluations = found.held_out * (1 + tracking.eval_samples) * times_evaluated if tracking.evaluate else 0
    facts = facts_of(config, model_config_of(Path(config.model.path)), accelerator_of(folder))
    signal = signal_of(tried.rows)
    lengths = lengths_of(tried.rows, facts.max_completion_length or 0)
    times = times_of(tried, evaluations=evaluations)
    ended = str(why_it_failed(tried, RunDirectory(folder), "the rehearsal")) if tried.failed else ""
    return Rehearsal(
        folder=folder,
        steps=len(tried.lines),
        device=found.device,
        processes=found.processes,
        seconds=seconds,
        signal=signal,
        lengths=lengths,
        worst=found.worst,
        times=times,
        samples=choose(tried.rows),
        concerns=concerns(tried, signal, lengths, times, facts, ended),
    )
