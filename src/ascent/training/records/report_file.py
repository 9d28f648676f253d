"""The report that a run ends with: report.html, made by a process of its own, which the run neither waits for long nor
fails with."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from ascent.tracking.run_directory import RunDirectory

_MOST_SECONDS = 300


def write_report(run: RunDirectory, say: Callable[[str], object]) -> None:
    """Write the run's report.html. Where it can't be made, `say` gets the reason in a line."""
    command = [sys.executable, "-m", "ascent", "report", str(run.path), "--export", str(run.report)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False)
        told = done.stderr.strip().splitlines()
        why = "" if not done.returncode else told[0] if told else f"exit code {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    if why:
        say(f"note: report.html was not written: {why.removeprefix('error: ')}")
