"""A generation that was sampled ahead, kept with a checkpoint: a resumed run trains on the very same completions."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ascent.errors import InputError
from ascent.tracking.run_directory import write_json
from ascent.types import Completion


def save(checkpoint: Path, rank: int, completions: Sequence[Completion]) -> None:
    """Write a rank's completions into a checkpoint's folder, which need not exist yet."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    write_json(_file(checkpoint, rank), {"completions": [asdict(completion) for completion in completions]})


def load(checkpoint: Path, rank: int) -> list[Completion]:
    """A rank's completions; none where nothing was on its way. Raises InputError for a file that can't be understood.

    The clock of the process that sampled them is gone: their times keep their length and end now.
    """
    file = _file(checkpoint, rank)
    if not file.is_file():
        return []
    try:
        return [_completion(row) for row in json.loads(file.read_text(encoding="utf-8"))["completions"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is not what a run writes: {type(error).__name__}: {error}") from error


def _file(checkpoint: Path, rank: int) -> Path:
    return checkpoint / f"ahead-rank{rank}.json"


def _completion(row: dict[str, object]) -> Completion:
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    completion = Completion(**fields)  # type: ignore[arg-type]
    now = time.monotonic()
    fields |= {"submitted_at": now - (completion.finished_at - completion.submitted_at), "finished_at": now}
    return Completion(**fields)  # type: ignore[arg-type]
