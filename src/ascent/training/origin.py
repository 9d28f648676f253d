"""`origin.json`: what a run started from, written when it starts, so that its weights can say where they come from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.models.digests import weights_digest
from ascent.tasks.digests import tasks_digest
from ascent.tracking.run_directory import RunDirectory, read_state, write_json
from ascent.types import Task

if TYPE_CHECKING:
    from ascent.training.policy_tasks import RunTasks


def record_origin(
    run: RunDirectory, config: RunConfig, base: Path, tasks: RunTasks, *, checkpoint: Path | None
) -> None:
    """Write down the base model (name and digest of its weights) and the tasks of a run that starts, or goes on from
    `checkpoint`.

    A run that is resumed keeps what it started from. Tasks that have changed since are added, with the step from which
    they count.
    """
    step = 0 if checkpoint is None else read_state(checkpoint).step
    asked = {
        "since_step": step,
        "train": {"source": config.tasks.train, **_summary(tasks.train)},
        "held_out": {"source": config.tasks.held_out, **_summary(tasks.held_out)},
    }
    before = read_origin(run) if step > 0 else None
    if before is None:
        model = config.model
        digest = weights_digest(base) if step == 0 else None  # begun by an older release: not known any more
        named = {"name": model.path, "revision": model.revision, "digest": digest}
        content: dict[str, Any] = {"schema": "ascent.origin/1", "base": named, "tasks": [asked]}
    else:
        kept = [each for each in before["tasks"] if each["since_step"] < step]
        same = kept and {**kept[-1], "since_step": step} == asked
        content = {**before, "tasks": kept if same else [*kept, asked]}
    write_json(run.origin, content)


def read_origin(run: RunDirectory) -> dict[str, Any] | None:
    """What `record_origin` wrote; None in a run directory of an older release. Raises InputError for other content."""
    file = run.origin
    if not file.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if not {"base", "tasks"} <= set(content):
            raise KeyError("base and tasks")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is not what a run writes: {type(error).__name__}: {error}") from error
    return content


def _summary(tasks: Sequence[Task]) -> dict[str, Any]:
    return {"count": len(tasks), "digest": tasks_digest(tasks)}
