"""A trial from outside: its folder, its processes, and what became of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ascent.config import RunConfig
from ascent.tables import LAUNCHERS, load
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunDirectory
from ascent.training.trial import asked, found
from ascent.training.trial.asked import Trial, tried_config
from ascent.training.trial.found import Tried

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

    Where they end with an error, which they have told, `code` of what is returned isn't 0, and holds what they found
    until then. Raises InputError where they can't be started.
    """
    run_directory.write_text(run.config, tried_config(config).to_yaml())
    asked.write(run, replace(trial, began=time.time()))
    launch: Callable[..., int] = load(LAUNCHERS, launcher)
    ended_before = _ended_for_memory()
    code = launch(run.path, processes, resume=False, debug=debug, worker=WORKER)
    killed = code != 0 and _ended_for_memory() > ended_before and not run.failures()
    return found.read(run.path, code, killed=killed)


def _ended_for_memory() -> int:
    """How many processes of this host the kernel has ended for want of memory; 0 where it doesn't count them."""
    try:
        words = Path("/proc/vmstat").read_text(encoding="ascii").split()
        return int(words[words.index("oom_kill") + 1])
    except (OSError, ValueError):
        return 0
