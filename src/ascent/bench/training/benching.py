"""`ascent bench --training`: from a configuration to what its step is made of."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from ascent.bench.training.applying import apply as try_change
from ascent.bench.training.changes import Situation, changes
from ascent.bench.training.measured import Measured, measured
from ascent.bench.training.report import TrainingBench
from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.host.machine_share import usable_cores
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunDirectory
from ascent.training.trial.asked import Trial
from ascent.training.trial.found import Tried
from ascent.training.trial.starting import start_trial, why_it_failed

STEPS = 5
_LEAST_STEPS = 2


def bench_training(
    config: RunConfig,
    *,
    steps: int = STEPS,
    apply: bool = False,
    say: Callable[[str], None],
    processes: int = 1,
    launcher: str = "local",
    debug: bool = False,
) -> TrainingBench:
    """Measure `steps` real steps of a run of `config`, after one that doesn't count, in a folder that is thrown away.
    With `apply` the first change that alters nothing of the training is tried. `say` takes sentences to the user.

    Raises InputError for too few steps, and where the run can't make them.
    """
    if steps < _LEAST_STEPS:
        raise InputError(f"{steps} steps are too few to measure", f"Take at least {_LEAST_STEPS}.")

    def run(settings: RunConfig) -> Tried:
        with tempfile.TemporaryDirectory(prefix="ascent-bench-") as folder:
            place = run_directory.create(Path(folder), "run")
            trial = Trial(steps=steps + 1, dense=True)
            tried = start_trial(settings, trial, place, processes=processes, launcher=launcher, debug=debug)
            _refuse_unfinished(tried, place)
        return tried

    def measure(settings: RunConfig) -> Measured:
        return measured(run(settings))

    say(f"measuring {steps} steps, after one that doesn't count")
    tried = run(config)
    found = measured(tried)
    suggested = changes(Situation(config, found, tried, usable_cores()))
    bench = TrainingBench(tried.found.device, tried.found.processes, found, tuple(suggested))
    first = next((change for change in suggested if not change.alters), None)
    if not apply:
        return bench
    if first is None:
        say("nothing to try: no change is known that should gain something and alters nothing of the training")
        return bench
    return TrainingBench(
        bench.device, bench.processes, found, bench.changes, try_change(config, first, found, measure, say)
    )


def _refuse_unfinished(tried: Tried, run: RunDirectory) -> None:
    if tried.found.out_of_memory:
        raise InputError(tried.found.out_of_memory)
    if tried.killed:
        raise InputError("the host's memory ran out, and the kernel ended the training")
    if tried.code == 1:  # the signal was the launcher's: what else was to be measured is not wanted either
        raise KeyboardInterrupt
    if tried.failed:
        raise why_it_failed(tried, run, "the training")
