"""The attempts of a run: each start of its processes has a number, and only the newest may write.

A process that was given up for lost may still be there: its machine was cut off, its end wasn't seen. A launcher that
starts a run more than once therefore numbers the starts in `attempts.jsonl`, one line each, and tells its processes
their number. Whoever writes into the run directory asks `fence` first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ascent.errors import InputError

FILE = "attempts.jsonl"
VARIABLE = "ASCENT_ATTEMPT"  # of a process: NUMBER:RUN


class StaleAttemptError(InputError):
    """This process belongs to an attempt that isn't the newest: it must write nothing more."""


def begin(
    run: Path, *, why: str = "", ranks: int = 0, nodes: Sequence[str] = (), accelerator: str | None = None
) -> int:
    """Begin the next attempt, after which processes of older ones write nothing; its number, from 1 on.

    `why`: what ended the one before; `ranks` and `nodes`: with and on which this one trains; `accelerator`: the nodes'
    kind of device, where they are others than the machine that starts it.
    """
    number = latest(run) + 1
    line = {
        "attempt": number,
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "why": why,
        "ranks": ranks,
        "nodes": list(nodes),
        "accelerator": accelerator,
    }
    with open(run / FILE, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())  # other machines read it
    return number


def latest(run: Path) -> int:
    """The number of the newest attempt; 0 where none was counted."""
    try:
        return (run / FILE).read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def variables(run: Path, number: int) -> dict[str, str]:
    """What tells a process which attempt of which run it belongs to."""
    return {VARIABLE: f"{number}:{run.absolute()}"}


def fence() -> None:
    """Raise StaleAttemptError in a process of an attempt that isn't its run's newest. Costs one small file's reading;
    nothing where attempts aren't counted."""
    told = os.environ.get(VARIABLE)
    if told is None:
        return
    number, _, run = told.partition(":")
    newest = latest(Path(run))
    if newest != int(number):
        raise StaleAttemptError(
            f"this process belongs to attempt {number} of {run}, and attempt {newest} has begun: it writes nothing",
            "The newest attempt goes on by itself; end this one if it doesn't end.",
        )
