"""A trial from outside: its folder, its processes, and what became of them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.tables import LAUNCHERS, load
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunDirectory
from ascent.training.trial import asked, found
from ascent.training.trial.asked import Trial, tried_config
from ascent.training.trial.found import Tried

_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
WORKER = "ascent.training.trial.worker"


def start_trial(
    config: RunConfig,
    trial: Trial,
    run: RunDirectory,
    *,
    processes: int = 1,
    launcher: str = "local",
    debug: bool = False,
) -> Tried:
    """Try a run of `config` in the folder `run`, which is there. Its processes talk on standard error.

    Where an error ends them, `code` of what is returned says so, and the rest holds what they found until then; a
    traceback stands on standard error, too. Raises InputError where they can't be started.
    """
    run_directory.write_text(run.config, tried_config(config).to_yaml())
    asked.write(run, replace(trial, began=time.time()))
    launch: Callable[..., int] = load(LAUNCHERS, launcher)
    ended_before = _ended_for_memory()
    code = launch(run.path, processes, resume=False, debug=debug, worker=WORKER)
    killed = code != 0 and _ended_for_memory() > ended_before and not run.failures()
    return found.read(run.path, code, killed=killed)


def why_it_failed(tried: Tried, run: RunDirectory, what: str) -> InputError:
    """The error of a trial that ended with one; `what` names the trial, such as "the rehearsal"."""
    if tried.found.refused:
        return InputError(tried.found.refused, tried.found.mend)
    when = f"after {len(tried.lines)} whole steps" if tried.lines else "before its first step was whole"
    failures = run.failures()
    if not failures:
        return InputError(f"{what} ended {when}", "Why stands above.")
    text = failures[0].read_text(encoding="utf-8")
    places = _FRAME.findall(text)
    place = f" (in {places[-1][2]}, {places[-1][0]}, line {places[-1][1]})" if places else ""
    return InputError(f"{what} ended {when}: {text.strip().splitlines()[-1]}{place}", "The traceback stands above.")


def _ended_for_memory() -> int:
    """How many processes of this host the kernel has ended for want of memory; 0 where it doesn't count them."""
    try:
        words = Path("/proc/vmstat").read_text(encoding="ascii").split()
        return int(words[words.index("oom_kill") + 1])
    except (OSError, ValueError):
        return 0
