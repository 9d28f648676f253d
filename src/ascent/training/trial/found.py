"""What a trial found beside the files of a run: kept after every step, so that a kill loses no more than the last."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ascent.errors import InputError
from ascent.tracking import run_directory
from ascent.tracking.rollouts import read_rollouts
from ascent.tracking.run_directory import RunDirectory

FILE = "found.json"


@dataclass(frozen=True, slots=True)
class Dense:
    """A forward and backward pass of `rows` equal rows without padding: seconds a token, and tokens of a row."""

    per_token: float
    rows: int
    prompt: int
    completion: int


@dataclass(frozen=True, slots=True)
class Worst:
    """A step on a batch in which every sequence has `prompt` + `completion` tokens. `state` says how far it came; where
    memory ran out, `why` says more. `peak` are the bytes that its update took and `planned` those that were planned for
    it (0: not planned), both as `memory.measured` counts them; `in_use` of `usable` are those of the device with all
    that is on it (on CPU: of this process, and of what it could have). `seconds` is what the update took."""

    rows: int
    prompt: int
    completion: int
    state: Literal["trying", "done", "out of memory"] = "trying"
    why: str = ""
    peak: int = 0
    planned: int = 0
    in_use: int = 0
    usable: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Found:
    """Of one trial, as its first process sees it. `steps` were made whole, of `total_steps` that the run has;
    `optimizer` is what the optimizer took in each. `device` names what it ran on (of a `kind`), `held_out` counts the
    tasks that a whole run evaluates. `memory_mends` are settings with which the update takes less, by the plan, and
    `fits` such as take more and save time, with which the run still fits. `out_of_memory` says where a real step found
    no room, "" where none did; `refused` and `mend` are those of the InputError that ended the trial."""

    device: str = ""
    kind: str = ""
    processes: int = 1
    start_seconds: float = 0.0
    total_steps: int = 0
    steps: int = 0
    held_out: int = 0
    optimizer: Sequence[float] = ()
    dense: Dense | None = None
    worst: Worst | None = None
    memory_mends: Sequence[str] = ()
    fits: Sequence[str] = ()
    out_of_memory: str = ""
    refused: str = ""
    mend: str = ""


@dataclass(slots=True)
class FoundFile:
    """Keeps `found.json`. Only the main process writes (`keeps`)."""

    run: RunDirectory
    keeps: bool
    found: Found = field(default_factory=Found)

    def take(self, **news: Any) -> None:
        """Keep what is known now, too."""
        self.found = replace(self.found, **news)
        if self.keeps:
            run_directory.write_json(self.run.path / FILE, asdict(self.found))


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial after its end. `lines` are those of its whole steps in metrics.jsonl, `rows` the completions of these
    (`read_rollouts`). `code` is 0 where it came to its end and 1 where it was stopped; `killed`: the kernel ended a
    process for want of memory."""

    found: Found
    lines: Sequence[Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]
    code: int = 0
    killed: bool = False

    @property
    def failed(self) -> bool:
        """Whether an error ended it, other than a want of memory."""
        worst = self.found.worst
        short = self.killed or self.found.out_of_memory or (worst is not None and worst.state == "out of memory")
        return self.code > 1 and not short

    @property
    def timed(self) -> Sequence[Mapping[str, Any]]:
        """The lines whose times count: without the first step's, which builds and warms things up, where it isn't the
        only one."""
        return self.lines[1:] or self.lines


def keep_refusal(path: Path, error: InputError) -> None:
    """Keep in the folder of a trial why it ended, with what was found until then."""
    content = {**asdict(Found()), **_content(path), "refused": error.message, "mend": error.mend}
    run_directory.write_json(path / FILE, content)


def _content(path: Path) -> dict[str, Any]:
    file = path / FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def read(path: Path, code: int, *, killed: bool) -> Tried:
    """What lies in the folder of a trial that ended with `code`."""
    run, content = RunDirectory(path), _content(path)
    for name, kind in (("dense", Dense), ("worst", Worst)):
        if content.get(name) is not None:
            content[name] = kind(**content[name])
    found = Found(**content)
    lines = [line for line in run_directory.read_metrics(run.metrics) if line["step"] <= found.steps]
    rows = read_rollouts(run.rollouts) if any(run.rollouts.glob("*.parquet")) else []
    return Tried(found, lines, [row for row in rows if row["step"] <= max(found.steps, 1)], code, killed)
