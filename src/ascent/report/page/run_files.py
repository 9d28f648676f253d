"""The small files of a run directory, read as far as they can be. What can't is named, so that a page can say so."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

import yaml

from ascent.report.page.growing_lines import GrowingLines
from ascent.report.page.shown_tasks import ShownTask, tasks_from_lines

Status = Literal["empty", "evaluated", "training", "stalled", "failed", "ended"]
_STALLED_STEPS, _STALLED_SECONDS = 6, 1800.0
Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Problem:
    """A file of the run that can't be used, wholly or in part, and why."""

    file: str
    what: str


@dataclass(frozen=True, slots=True)
class RunState:
    """What a run directory's small files say at one moment.

    `alarms` are the lines of alarms.jsonl. `age` is seconds since the last step's line, None before the first.
    """

    path: Path
    config: Mapping[str, Any]
    steps: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    alarms: Sequence[Mapping[str, Any]]
    tasks: Mapping[str, Sequence[ShownTask]]
    failures: Sequence[str]
    problems: Sequence[Problem]
    age: float | None
    has_model: bool

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def last_step(self) -> int:
        """Optimizer steps done; 0 before the first."""
        return whole(self.steps[-1]["step"]) if self.steps else 0

    @property
    def total_steps(self) -> int | None:
        """Steps that were planned."""
        total = number(self.steps[-1].get("total_steps")) if self.steps else None
        return None if total is None else int(total)

    @property
    def status(self) -> Status:
        """Where the run stands, as far as its files tell. A run that was stopped looks as one that trains until it is
        stalled: it has been silent for longer than six median steps, and than half an hour."""
        if self.has_model or (self.total_steps is not None and 0 < self.total_steps <= self.last_step):
            return "ended"
        if self.failures:
            return "failed"
        if self.age is None:  # `ascent evaluate` leaves a folder without steps
            return "evaluated" if self.evaluations else "empty"
        return "stalled" if self.age > max(_STALLED_STEPS * self.median_step, _STALLED_SECONDS) else "training"

    @property
    def median_step(self) -> float:
        """Seconds of a step, the median of the last 50; 0 before the first."""
        seconds = [value for step in self.steps[-50:] if (value := figure(step, "times", "step")) is not None]
        return median(seconds) if seconds else 0.0


def number(value: Any) -> float | None:
    """A finite number, or None for everything else that may stand in a damaged or older file."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # JSON's whole numbers have no end
        return None


def whole(value: Any) -> int:
    """A whole number, 0 where it is none."""
    found = number(value)
    return 0 if found is None else int(found)


def figure(line: Mapping[str, Any], *names: str) -> float | None:
    """The number at `names` in an object within objects, or None."""
    found: Any = line
    for name in names:
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return number(found)


@dataclass(slots=True)
class RunFiles:
    """Reads a run directory's small files, again only those that changed. Used by one thread at a time."""

    path: Path
    _lines: dict[str, GrowingLines] = field(default_factory=dict)
    _parsed: dict[str, tuple[Stamp, Any]] = field(default_factory=dict)

    def read(self) -> RunState:
        """What the files say now. Never raises for what is in them."""
        problems: list[Problem] = []
        steps = self._grown("metrics.jsonl", problems, "step")
        evaluations = self._grown("evaluations.jsonl", problems, "name")
        alarms = self._grown("alarms.jsonl", problems)
        held_out = self._whole("evaluation.json", json.loads, problems)
        config = self._whole("config.yaml", yaml.safe_load, problems)
        tasks = self._grown("tasks.jsonl", problems, "task_id")
        return RunState(
            path=self.path,
            config=config if isinstance(config, dict) else {},
            steps=steps,
            evaluations=evaluations,
            before=_half(held_out, "before"),
            after=_half(held_out, "after"),
            alarms=alarms,
            tasks=tasks_from_lines(tasks),
            failures=self._failures(problems),
            problems=problems,
            age=_age(self.path / "metrics.jsonl") if steps else None,
            has_model=_exists(self.path / "model"),
        )

    def _grown(self, name: str, problems: list[Problem], *needed: str) -> Sequence[Mapping[str, Any]]:
        lines = self._lines.setdefault(name, GrowingLines(self.path / name, needed))
        lines.refresh()
        if lines.error:
            problems.append(Problem(name, f"can't be read: {lines.error}"))
        if lines.wrong:
            places = ", ".join(map(str, lines.wrong[:5])) + (", ..." if len(lines.wrong) > 5 else "")
            problems.append(Problem(name, f"left out what can't be understood: line {places}"))
        if lines.cut_short:
            problems.append(Problem(name, "the last line has no end: it is being written, or a kill cut it short"))
        return tuple(lines.rows)

    def _whole(self, name: str, parse: Any, problems: list[Problem]) -> Any:
        path = self.path / name
        try:
            stamp = stamp_of(path)
            if name not in self._parsed or self._parsed[name][0] != stamp:
                self._parsed[name] = stamp, parse(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except OSError as error:
            problems.append(Problem(name, f"can't be read: {error.strerror or error}"))
            return None
        except (ValueError, yaml.YAMLError, RecursionError) as error:
            problems.append(Problem(name, f"can't be understood: {type(error).__name__}: {error}"[:300]))
            return None
        return self._parsed[name][1]

    def _failures(self, problems: list[Problem]) -> list[str]:
        try:
            return sorted(path.name for path in self.path.glob("failure-rank*.log"))
        except OSError as error:
            problems.append(Problem(".", f"can't be listed: {error.strerror or error}"))
            return []


def stamp_of(path: Path) -> Stamp:
    """What changes when a file does, its permissions included. Raises OSError."""
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _half(held_out: Any, when: str) -> Mapping[str, Any] | None:
    half = held_out.get(when) if isinstance(held_out, dict) else None
    return half if isinstance(half, dict) and isinstance(half.get("results"), list) else None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _age(path: Path) -> float | None:
    try:
        return max(0.0, time.time() - os.stat(path).st_mtime)
    except OSError:
        return None
