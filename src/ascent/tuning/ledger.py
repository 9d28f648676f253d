"""What was tried, a line each, written at once: a search that was killed goes on from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent.errors import InputError
from ascent.tracking.run_directory import append_json_line, read_json_lines
from ascent.tuning.probe import Why
from ascent.tuning.space import Point

SCHEMA = "ascent.tune.ledger/1"


@dataclass(frozen=True, slots=True)
class Tried:
    """One probe, or a start that failed.

    `share` is the part of their lengths that completions had. `exact`: the engine was started with just these settings,
    as a run's is, not with larger ones and limits. `cost`: seconds of the budget, the start included where there was
    one. With `cut` it was broken off, and `tokens_per_second` is more than it would have had. `why` and `text` of a
    failure; then there is no speed.
    """

    point: Point
    share: float
    exact: bool
    cost: float
    tokens_per_second: float | None = None
    seconds: float | None = None
    cut: bool = False
    start: float | None = None
    why: Why | None = None
    text: str = ""


class Ledger:
    """The lines of one search. What was tried for another model, workload or set of values is refused."""

    def __init__(self, path: Path, of: Mapping[str, Any]) -> None:
        """Open or begin; `of` is what the search is of. Raises InputError for a ledger of another one, or an unreadable
        one."""
        self._path = path
        header = {"schema": SCHEMA, "of": _digest(of)}
        try:
            lines = read_json_lines(path)
            if lines and lines[0] != header:
                raise InputError(
                    f"{path} is of another search: another model, workload, machine or set of values",
                    "Give another folder with --out, or remove that one.",
                )
            self.tried = [_tried(line) for line in lines[1:]]
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path}: can't be read: {error}", "Remove the folder to begin anew.") from error
        if lines:
            _cut_half_line(path)
        else:
            path.write_text(json.dumps(header) + "\n", encoding="utf-8")

    def add(self, tried: Tried) -> None:
        """Keep one."""
        line = {name: getattr(tried, name) for name in Tried.__slots__}
        append_json_line(self._path, line | {"point": tried.point.to_json()})
        self.tried.append(tried)

    @property
    def spent(self) -> float:
        """Seconds of the budget."""
        return sum(each.cost for each in self.tried)


def _tried(line: Mapping[str, Any]) -> Tried:
    return Tried(**{**line, "point": Point(**line["point"])})


def _digest(of: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:16]


def _cut_half_line(path: Path) -> None:
    """A kill may have left a line without its end, to which the next one would be glued."""
    text = path.read_bytes()
    if not text.endswith(b"\n"):
        path.write_bytes(text[: text.rindex(b"\n") + 1])
