"""What a training process prints, in a file of its own: for launchers whose processes have no terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "ASCENT_RANK_LOG"  # the beginning of the file's path; the rank follows


def rank_log(beginning: str, rank: int) -> Path:
    """Where the process of this rank prints."""
    return Path(f"{beginning}-rank{rank}.log")


def print_to_own_file(rank: int) -> None:
    """Send standard output and error of this process, and of those that it starts, to the end of its own file, where
    the launcher asked for one."""
    beginning = os.environ.get(VARIABLE)
    if beginning is None:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(rank_log(beginning, rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
