"""The order in which a checkpoint is written, so that a kill at any moment leaves one to go on from.

Step 10, `save_total_limit: 1`, checkpoint-5 is there:

    checkpoint-10/ without a mark        whatever it was before; all ranks write their files into it
    checkpoint-10/ascent_state.json      the mark, by rename: from here on it is the checkpoint to go on from
    checkpoint-5/ loses its mark         and is deleted only then

A complete checkpoint of the same step is renamed to checkpoint-10.old first, and deleted when the new one has its mark.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ascent.tracking import attempts
from ascent.tracking.run_directory import STATE_FILE, RunState, checkpoints_in, is_complete, step_of, write_json


@contextlib.contextmanager
def saving(folder: Path, state: RunState, args: Any, trainer_state: Any, wait: Callable[[], None]) -> Iterator[None]:
    """Inside, all ranks write into `folder`, TRL among them; afterwards the checkpoint is complete, and those beyond
    `args.save_total_limit` are gone. Collective: `wait` is a barrier; rank 0 makes, marks and deletes folders.

    `trainer_state` is transformers' TrainerState, whose best checkpoint always stays. Raises StaleAttemptError, before
    anything is written or deleted, in a process that must not write any more.
    """
    attempts.fence()
    main, limit = args.process_index == 0, args.save_total_limit
    if main:
        _make_room(folder)
    wait()
    args.save_total_limit = None  # transformers would delete the old ones now
    try:
        yield
    finally:
        args.save_total_limit = limit
    wait()
    attempts.fence()
    if main:
        _mark(folder, state)
        best = {folder.with_name(f"checkpoint-{trainer_state.best_global_step}")}
        if trainer_state.best_model_checkpoint is not None:
            best.add(Path(trainer_state.best_model_checkpoint))
        rotate(folder.parent, limit, newest=folder, best=best)


def rotate(checkpoints: Path, keep: int | None, *, newest: Path, best: Collection[Path]) -> None:
    """Delete checkpoints until `keep` are left (None or 0: no limit), never the newest or the best.

    First go those that are not complete, then those of steps beyond the newest, which a resumed run has left behind,
    then the oldest.
    """
    if not keep or keep < 0:
        return
    found = checkpoints_in(checkpoints)
    stay = {path.resolve() for path in (newest, *best)}
    others = [path for path in found if path.resolve() not in stay]
    others.sort(key=lambda path: (is_complete(path), step_of(path) <= step_of(newest), step_of(path)))
    kept = len(found) - len(others)
    for path in others[: len(found) - max(keep, kept)]:
        _delete(path)


def _make_room(folder: Path) -> None:
    if is_complete(folder):
        old = _old(folder)
        _delete(old)
        os.rename(folder, old)
    elif folder.exists():
        _delete(folder)
    folder.mkdir(parents=True)


def _mark(folder: Path, state: RunState) -> None:
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    write_json(folder / STATE_FILE, {**asdict(state), "files": files})
    _delete(_old(folder))


def _delete(checkpoint: Path) -> None:
    """The mark first: what a kill leaves is no checkpoint any more."""
    (checkpoint / STATE_FILE).unlink(missing_ok=True)
    shutil.rmtree(checkpoint, ignore_errors=True)


def _old(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.old")
