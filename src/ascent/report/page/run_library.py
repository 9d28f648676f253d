"""The runs that the page shows: those of a folder, or one. A run is opened when it is first looked at."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

from ascent.errors import InputError
from ascent.report.page.rollout_index import RolloutIndex
from ascent.report.page.rollout_queries import Rollouts
from ascent.report.page.run_alarms import Judgement, RunAlarms
from ascent.report.page.run_files import Problem, RunFiles, RunState
from ascent.report.page.token_strip import Tokenizers

_INDEXES = 2  # kept in memory at once
_FRESH = 1.0  # seconds for which a run's small files are not looked at again
_SIGNS = ("config.yaml", "metrics.jsonl", "rollouts")


class NoSuchRunError(LookupError):
    """A name that is no run of the folder, or no longer."""


@dataclass(slots=True)
class OpenRun:
    """A run that is looked at. May be used from any thread."""

    path: Path
    files: RunFiles
    tokenizers: Tokenizers
    alarms: RunAlarms
    _state: RunState | None = None
    _judged: tuple[RunState, Judgement] | None = None
    _read: float = 0.0
    _rollouts: Rollouts | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def state(self) -> RunState:
        """What the small files say, at most a second old."""
        with self._lock:
            if self._state is None or time.monotonic() - self._read > _FRESH:
                self._state = self.files.read()
                self._read = time.monotonic()
            return self._state

    @property
    def judgement(self) -> Judgement:
        """The alarms, as of `state`."""
        state = self.state
        with self._lock:
            if self._judged is None or self._judged[0] is not state:
                self._judged = state, self.alarms.judge(state)
            return self._judged[1]

    @property
    def rollouts(self) -> Rollouts:
        """The run's completions; the index is made at the first use."""
        with self._lock:
            if self._rollouts is None:
                self._rollouts = Rollouts(RolloutIndex(self.path))
            return self._rollouts

    @property
    def indexed(self) -> bool:
        """Whether an index is held."""
        return self._rollouts is not None

    def problems(self) -> list[Problem]:
        """Everything of the run that can't be read, as far as it was looked at."""
        found = list(self.state.problems)
        if self.judgement.unread:
            found.append(Problem("metrics.jsonl", f"can't be judged for alarms: {self.judgement.unread}"))
        if self._rollouts is not None:
            found += self._rollouts.index.problems
        return found

    def drop_index(self) -> None:
        """Free the index's memory; the next use makes it anew."""
        with self._lock:
            rollouts, self._rollouts = self._rollouts, None
        if rollouts is not None:
            rollouts.index.close()


class RunLibrary:
    """Every run under `root`, or the one run that `root` is."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._open: OrderedDict[str, OpenRun] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def single(self) -> bool:
        """Whether `root` itself is a run."""
        return _is_run(self.root)

    def paths(self) -> dict[str, Path]:
        """The runs by name, those that were written to last first."""
        if self.single:
            return {self.root.resolve().name: self.root}
        try:
            found = [path for path in self.root.iterdir() if _is_run(path)]
        except OSError:
            return {}
        return {path.name: path for path in sorted(found, key=_written, reverse=True)}

    def open(self, name: str) -> OpenRun:
        """The run of that name. Raises NoSuchRunError. Only names that the folder lists are ever looked up."""
        path = self.paths().get(name)
        with self._lock:
            if path is None:
                self._forget(name)
                raise NoSuchRunError(name)
            if name not in self._open:
                self._open[name] = OpenRun(path, RunFiles(path), Tokenizers(path), RunAlarms())
            self._open.move_to_end(name)
            indexed = [run for run in self._open.values() if run.indexed and run is not self._open[name]]
            for run in indexed[: max(0, len(indexed) + 1 - _INDEXES)]:
                run.drop_index()
            return self._open[name]

    def close(self) -> None:
        """Free everything."""
        with self._lock:
            for name in list(self._open):
                self._forget(name)

    def _forget(self, name: str) -> None:
        run = self._open.pop(name, None)
        if run is not None:
            run.drop_index()


def library(root: Path) -> RunLibrary:
    """The runs at `root`. Raises InputError where there is no folder, or no run in it."""
    if not root.is_dir():
        raise InputError(
            f"{root}: no such folder", "Give a run directory such as runs/NAME, or the folder of all runs."
        )
    found = RunLibrary(root)
    if not found.paths():
        raise InputError(
            f"{root} holds no run (a folder with config.yaml, metrics.jsonl or rollouts/), or can't be listed",
            "`ascent train` writes runs to runs/ unless tracking.folder says otherwise.",
        )
    return found


def _is_run(path: Path) -> bool:
    try:
        return path.is_dir() and any((path / name).exists() for name in _SIGNS)
    except OSError:
        return path.parent.is_dir()  # a folder without permissions is shown, so that its page can say so


def _written(path: Path) -> float:
    for name in ("metrics.jsonl", "config.yaml", "."):
        try:
            return (path / name).stat().st_mtime
        except OSError:
            continue
    return 0.0
