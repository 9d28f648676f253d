"""The folder of a run: which files it holds, and how a resumed run goes on in it without losing or doubling anything.

Files are appended to line by line or written beside and renamed, so a kill leaves whole files. What lies beyond the
checkpoint that a run resumes from is moved to `discarded/N/`.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent.errors import InputError

_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_ROLLOUTS = re.compile(r"(?:eval-)?(\d+)-rank\d+\.parquet")
STATE_FILE = "ascent_state.json"


@dataclass(frozen=True, slots=True)
class RunState:
    """What a checkpoint adds to TRL's state. `generation` is the number of the next generation, `micro_step` TRL's
    count of forward passes, `step` the optimizer step of the checkpoint."""

    generation: int
    micro_step: int
    step: int


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths of one run."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def environment(self) -> Path:
        """What the run ran on."""
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        """One JSON object a training step."""
        return self.path / "metrics.jsonl"

    @property
    def evaluation(self) -> Path:
        """Held-out pass rates before and after training, task by task."""
        return self.path / "evaluation.json"

    @property
    def rollouts(self) -> Path:
        """Every completion, a parquet file for each generation and rank."""
        return self.path / "rollouts"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints as transformers' Trainer writes them, each with Ascent's state."""
        return self.path / "checkpoints"

    def failure(self, rank: int) -> Path:
        """Where a process writes the traceback that ended it."""
        return self.path / f"failure-rank{rank}.log"

    def failures(self) -> list[Path]:
        """The tracebacks that are there."""
        return sorted(self.path.glob("failure-rank*.log"))

    def remove_failures(self) -> None:
        """Remove the tracebacks of a former start, by however many processes; they would explain this one."""
        for failure in self.failures():
            failure.unlink(missing_ok=True)

    def last_checkpoint(self) -> Path | None:
        """The newest complete checkpoint (state file present), or None."""
        complete = [path for path in self.checkpoints.glob("checkpoint-*") if (path / STATE_FILE).is_file()]
        return max(complete, key=_step_of, default=None)


def create(folder: Path, name: str) -> RunDirectory:
    """Make a new run directory. Raises InputError when it exists or can't be written."""
    path = folder / name
    if path.exists():
        raise InputError(
            f"run directory {path} exists already",
            f"Go on with it by `ascent train --resume {path}`, or choose another tracking.name.",
        )
    run = RunDirectory(path)
    try:
        for each in (run.rollouts, run.checkpoints):
            each.mkdir(parents=True)
    except OSError as error:
        raise InputError(
            f"run directory {path} can't be written: {error.strerror or error}",
            "Choose a writable place with tracking.folder.",
        ) from error
    return run


def open_existing(path: Path) -> RunDirectory:
    """The run directory at `path`. Raises InputError when it isn't one."""
    run = RunDirectory(path)
    if not run.config.is_file():
        raise InputError(f"{path}: not a run directory (no config.yaml in it)", "Give a folder such as runs/NAME.")
    return run


def default_name(config_path: Path) -> str:
    """The configuration's name and the time."""
    return f"{config_path.stem}-{time.strftime('%Y%m%d-%H%M%S')}"


def read_state(checkpoint: Path) -> RunState:
    """Ascent's part of a checkpoint. Raises InputError when it is absent or unreadable."""
    path = checkpoint / STATE_FILE
    try:
        return RunState(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: not a usable checkpoint state: {error}") from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file by rename."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def write_text(path: Path, content: str) -> None:
    """Write a text file by rename."""
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(content, encoding="utf-8")
    os.replace(beside, path)


def append_json_line(path: Path, content: Mapping[str, Any]) -> None:
    """Append one line in one write."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(content) + "\n")


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; a last line that a kill cut short is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def discard_after(run: RunDirectory, state: RunState | None) -> Path | None:
    """Move what lies beyond a checkpoint to `discarded/N/`: rollouts of later generations, metrics of later steps.

    `state` None means that the run starts anew: everything moves. Returns the folder, or None when nothing was beyond.
    """
    generation, step = (0, 0) if state is None else (state.generation, state.step)
    late_files = [
        path
        for path in sorted(run.rollouts.glob("*.parquet"))
        if (match := _ROLLOUTS.fullmatch(path.name)) and int(match[1]) >= generation
    ]
    lines = read_json_lines(run.metrics)
    kept = [line for line in lines if line["step"] <= step]
    cut_short = run.metrics.is_file() and not run.metrics.read_text(encoding="utf-8").endswith("\n")
    if not late_files and len(kept) == len(lines) and not cut_short:
        return None
    folder = _next_discarded(run)
    for path in late_files:
        os.replace(path, folder / path.name)
    if run.metrics.is_file():
        os.replace(run.metrics, folder / run.metrics.name)
        for line in kept:
            append_json_line(run.metrics, line)
    return folder


def _next_discarded(run: RunDirectory) -> Path:
    number = 1
    while (folder := run.path / "discarded" / str(number)).exists():
        number += 1
    folder.mkdir(parents=True)
    return folder


def _step_of(checkpoint: Path) -> int:
    match = _CHECKPOINT.fullmatch(checkpoint.name)
    return int(match[1]) if match else -1
