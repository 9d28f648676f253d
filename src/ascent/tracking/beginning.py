"""A run begins with its first result. Until then its folder is only reserved: a run that is refused, or stopped before
it has anything to show, leaves no folder and takes no name, and a resumed run that is refused keeps its settings.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from ascent.errors import InputError
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunDirectory

_ENDING = 5.0  # seconds that the processes of a killed run may take to end


@contextlib.contextmanager
def new_run(folder: Path, name: str) -> Iterator[RunDirectory]:
    """Reserve `folder/name` for a new run; at the end the folder goes again if it holds nothing but settings.

    A folder of that name in which nothing began is taken over, unless another process has reserved it. Reservations
    are locks: they end with their process, however it ends.

    Raises InputError when the name is taken or the folder can't be written.
    """
    path = folder / name
    made_parent = not folder.exists()
    with contextlib.ExitStack() as stack:
        with locked(folder, wait=True):  # one at a time looks and reserves
            with locked(path) as ours:
                if ours and _is_unbegun(path, but=("servers", "logs")):
                    shutil.rmtree(path)
            run = run_directory.create(folder, name)
            stack.enter_context(locked(path))
        try:
            yield run
        finally:
            if _is_unbegun(path):
                shutil.rmtree(path)
                if made_parent:
                    with contextlib.suppress(OSError):  # another run is in it
                        folder.rmdir()


@contextlib.contextmanager
def resumed_run(path: Path) -> Iterator[RunDirectory]:
    """The run at `path`, to go on with; at the end it has its old settings again if not one more step was trained.

    Raises InputError when it isn't a run directory, or another process trains in it.
    """
    run = run_directory.open_existing(path)
    with _locked_soon(path) as ours:
        if ours is False:
            raise InputError(
                f"{path}: a training is at work in it",
                "Wait for its end, or end it with Ctrl-C, which keeps a checkpoint.",
            )
        settings = {file: file.read_text(encoding="utf-8") for file in run.settings if file.is_file()}
        metrics = _content(run.metrics)
        try:
            yield run
        finally:
            if metrics.startswith(_content(run.metrics)):  # what lay beyond the checkpoint may have moved away
                for file, content in settings.items():
                    run_directory.write_text(file, content)


def _is_unbegun(path: Path, but: tuple[str, ...] = ()) -> bool:
    """Whether the folder holds settings alone: no result, no failure, and no log but in the folders `but`."""
    settings = (*RunDirectory(path).settings, RunDirectory(path).attempts)
    return path.is_dir() and all(
        found.is_dir() or found in settings or found.name.endswith(".tmp") or found.relative_to(path).parts[0] in but
        for found in path.rglob("*")
    )


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = False) -> Iterator[bool | None]:
    """Hold a lock on a folder: a run holds its own as long as it trains. Gives False where another process has it, None
    where the folder isn't there or can't be locked."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        except OSError:  # a file system without locks
            yield None
        else:
            yield True
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked_soon(folder: Path) -> Iterator[bool | None]:
    """As `locked`; what a killed run started may hold its lock for some seconds more."""
    end = time.monotonic() + _ENDING
    while True:
        with locked(folder) as ours:
            if ours is not False or time.monotonic() > end:
                yield ours
                return
        time.sleep(0.2)


def _content(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
