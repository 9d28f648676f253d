"""The folder of a run: which files it holds, and how a resumed run goes on in it without losing or doubling anything.

Files are appended to line by line or written beside and renamed, so a kill leaves whole files. What lies beyond the
checkpoint that a run resumes from is moved to `discarded/N/`.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent.errors import InputError
from ascent.json_numbers import in_numbers, in_words
from ascent.tracking import attempts
from ascent.tracking.packed_files import generations_of, split

# `.old`: one that is being written anew, until the new one is complete
_CHECKPOINT = re.compile(r"checkpoint-(\d+)(?:\.old)?")
_EVALUATION = re.compile(r"eval-(\d+)-step(\d+)-rank\d+\.parquet")
STATE_FILE = "ascent_state.json"


@dataclass(frozen=True, slots=True)
class RunState:
    """What a checkpoint adds to TRL's state. `generation` is the number of the next generation, `micro_step` TRL's
    count of forward passes, `step` the optimizer step of the checkpoint, `evaluations` how many there were."""

    generation: int
    micro_step: int
    step: int
    evaluations: int = 0


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
    def origin(self) -> Path:
        """The base model and the tasks, with their digests."""
        return self.path / "origin.json"

    @property
    def tasks(self) -> Path:
        """The tasks with their tests, one JSON object each."""
        return self.path / "tasks.jsonl"

    @property
    def trackers(self) -> Path:
        """The names that trackers gave to the run."""
        return self.path / "trackers.json"

    @property
    def trial(self) -> Path:
        """What is tried in this folder, where no whole training is made in it (`training.trial`)."""
        return self.path / "trial.json"

    @property
    def attempts(self) -> Path:
        """One JSON object each time that the run's processes were started, where that is counted."""
        return self.path / attempts.FILE

    @property
    def logs(self) -> Path:
        """What processes printed, a file each, where they were not started from a terminal."""
        return self.path / "logs"

    @property
    def settings(self) -> tuple[Path, ...]:
        """What is written before a run has anything to show."""
        return self.config, self.environment, self.origin, self.tasks, self.trial

    @property
    def metrics(self) -> Path:
        """One JSON object a training step."""
        return self.path / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        """One JSON object an evaluation."""
        return self.path / "evaluations.jsonl"

    @property
    def evaluation(self) -> Path:
        """Held-out pass rates before and after training, task by task."""
        return self.path / "evaluation.json"

    @property
    def report(self) -> Path:
        """The run as one HTML file."""
        return self.path / "report.html"

    @property
    def alarms(self) -> Path:
        """One JSON object an alarm."""
        return self.path / "alarms.jsonl"

    @property
    def rollouts(self) -> Path:
        """Every completion, a parquet file for each generation and rank, and for each evaluation and rank."""
        return self.path / "rollouts"

    def generation_rollouts(self, number: int, rank: int) -> Path:
        """The completions of a generation that a rank sampled."""
        return self.rollouts / f"{number:06d}-rank{rank}.parquet"

    def evaluation_rollouts(self, number: int, step: int, rank: int) -> Path:
        """The completions of an evaluation, after `step` optimizer steps, that a rank sampled."""
        return self.rollouts / f"eval-{number:06d}-step{step:06d}-rank{rank}.parquet"

    def next_evaluation(self) -> int:
        """The number that no evaluation has yet."""
        names = (_EVALUATION.fullmatch(path.name) for path in self.rollouts.glob("eval-*"))
        return max((int(match[1]) + 1 for match in names if match), default=0)

    @property
    def bad_steps(self) -> Path:
        """Steps that were skipped since their gradients weren't finite, a folder each."""
        return self.path / "bad-steps"

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
        """The newest complete checkpoint, or None."""
        complete = [path for path in checkpoints_in(self.checkpoints) if is_complete(path)]
        return max(complete, key=lambda path: (step_of(path), not path.suffix), default=None)


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


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints that stand in a folder, complete or not, in no order."""
    return [path for path in folder.glob("checkpoint-*") if _CHECKPOINT.fullmatch(path.name)]


def step_of(checkpoint: Path) -> int:
    """The optimizer step of a checkpoint, by its name. Raises ValueError when it isn't named as one."""
    match = _CHECKPOINT.fullmatch(checkpoint.name)
    if match is None:
        raise ValueError(f"{checkpoint} is not named as a checkpoint")
    return int(match[1])


def is_complete(checkpoint: Path) -> bool:
    """Whether a checkpoint was wholly written, and nothing of it was deleted: its state file, which is written last and
    names the others, and all of those are there."""
    try:
        state = json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    files = state.get("files", []) if isinstance(state, dict) else []  # earlier releases wrote none
    return all((checkpoint / name).exists() for name in files)


def read_state(checkpoint: Path) -> RunState:
    """Ascent's part of a checkpoint. Raises InputError when it is absent or unreadable."""
    path = checkpoint / STATE_FILE
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return RunState(**{name: value for name, value in stored.items() if name != "files"})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a usable checkpoint state: {error}") from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file by rename."""
    write_text(path, json.dumps(_finite(content), indent=1, allow_nan=False) + "\n")


def write_text(path: Path, content: str) -> None:
    """Write a text file by rename. Raises StaleAttemptError in a process that must not write any more."""
    attempts.fence()
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(content, encoding="utf-8")
    os.replace(beside, path)


def append_json_line(path: Path, content: Mapping[str, Any]) -> None:
    """Append one line in one write. Numbers that JSON doesn't have are words: "nan", "inf" and "-inf". Raises
    StaleAttemptError in a process that must not write any more."""
    attempts.fence()
    with open(path, "a", encoding="utf-8") as file:
        file.write(_json_line(content))


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; a last line that a kill cut short is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The whole lines of `metrics.jsonl` or `evaluations.jsonl`, with numbers that aren't finite as floats again."""
    return [in_numbers(line) for line in read_json_lines(path)]


def discard_after(run: RunDirectory, state: RunState | None) -> Path | None:
    """Move what lies beyond a checkpoint to `discarded/N/`: rollouts of later generations, evaluations after later
    steps, metrics and alarms of later steps, later bad steps. The evaluation of the checkpoint's own step stays.

    `state` None means that the run starts anew: everything moves. Returns the folder, or None when nothing was beyond.
    A kill at any moment loses nothing; what is not yet moved is moved the next time. Raises InputError for a packed
    file that has to be cut in two and can't be read.
    """
    generation, step = (0, -1) if state is None else (state.generation, state.step)
    late = [path for path in sorted(run.rollouts.glob("*.parquet")) if _is_beyond(path.name, generation, step)]
    files = (run.metrics, run.evaluations, run.alarms)
    cut = [path for path in files if _kept_lines(path, step) is not None]
    after_is_late = _ends_after(run, step)
    bad = [path for path in run.bad_steps.glob("*") if path.name.isdigit() and int(path.name) > step]
    if not late and not cut and not bad and not after_is_late:
        return None
    folder = _next_discarded(run)
    for path in late:
        of = generations_of(path.name)
        if of is not None and of.start < generation:  # packed, when a later checkpoint was there
            split(path, generation, folder)
        else:
            os.replace(path, folder / path.name)
    for path in bad:
        (folder / run.bad_steps.name).mkdir(exist_ok=True)
        os.replace(path, folder / run.bad_steps.name / path.name)
    for path in cut:
        write_text(folder / path.name, path.read_text(encoding="utf-8"))
        write_text(path, "".join(map(_json_line, _kept_lines(path, step) or ())))
    if after_is_late:
        write_text(folder / run.evaluation.name, run.evaluation.read_text(encoding="utf-8"))
        stored = json.loads(run.evaluation.read_text(encoding="utf-8"))
        write_json(run.evaluation, {**stored, "after": None})
    if run.report.is_file():  # it shows what was moved
        os.replace(run.report, folder / run.report.name)
    return folder


def _is_beyond(name: str, generation: int, step: int) -> bool:
    of = generations_of(name)
    if of is not None:
        return of.stop > generation
    match = _EVALUATION.fullmatch(name)
    return match is not None and int(match[2]) > step


def _kept_lines(path: Path, step: int) -> Sequence[Mapping[str, Any]] | None:
    """The lines of a file up to a step; None where these are all of the file."""
    if not path.is_file():
        return None
    lines = read_json_lines(path)
    kept = [line for line in lines if line["step"] <= step]
    whole = not path.stat().st_size or path.read_text(encoding="utf-8").endswith("\n")
    return None if whole and len(kept) == len(lines) else kept


def _ends_after(run: RunDirectory, step: int) -> bool:
    """Whether the evaluation after training is of a later step; that of a release which wrote no step is left alone."""
    try:
        after = json.loads(run.evaluation.read_text(encoding="utf-8")).get("after") or {}
    except (OSError, ValueError, AttributeError):
        return False  # absent, or told by whoever reads it
    return isinstance(after, dict) and after.get("step", step) > step


def _json_line(content: Mapping[str, Any]) -> str:
    return json.dumps(in_words(content), allow_nan=False) + "\n"


def _finite(content: Any) -> Any:
    """The same with null for numbers that JSON doesn't have: NaN and the infinities."""
    if isinstance(content, Mapping):
        return {name: _finite(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def _next_discarded(run: RunDirectory) -> Path:
    number = 1
    while (folder := run.path / "discarded" / str(number)).exists():
        number += 1
    folder.mkdir(parents=True)
    return folder
