"""What a search found: a configuration fragment, the speeds with their intervals, and what isn't known."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ascent.config import file as config_file
from ascent.tracking.run_directory import write_json, write_text
from ascent.tuning.grouping import Grouping, grouping_table
from ascent.tuning.search import Search
from ascent.tuning.space import BOUND, KEYS, LeftOut, Point, Value

SCHEMA = "ascent.tune/1"
NEAR = 0.05  # settings that may be faster than the best by less than so much are told
_NOTHING = 0.01  # a gain (log of speed) that isn't worth another setting
_MOST_TOLD = 5
_ROWS = 12
# Student's t, 97.5 %, by degrees of freedom from 1 on: there are at most five probes
_T_975 = (12.706, 4.303, 3.182, 2.776)


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens/s of whole generations: geometric mean and 95 % interval (Student's t of the logarithms), None where there
    was one probe. `exact`: in an engine that was started with just these settings."""

    mean: float
    low: float | None
    high: float | None
    probes: int
    exact: bool

    def to_text(self) -> str:
        """Such as `812 (798 to 826)`."""
        between = "" if self.low is None else f" ({self.low:,.0f} to {self.high:,.0f})"
        return f"{self.mean:,.0f}{between}"


@dataclass(frozen=True, slots=True)
class Row:
    """A point that was measured. `gain` is its speed over the configured one's, less 1; `short`: on a quarter of the
    lengths only, so that its speed is no whole generation's."""

    point: Point
    gain: float
    speed: Speed | None
    short: bool


@dataclass(frozen=True, slots=True)
class Near:
    """A point that wasn't measured, with what the model expects of it: its speed over the best one's, less 1, and the
    upper end of the one-sided 95 % interval of that."""

    point: Point
    gain: float
    at_most: float


@dataclass(frozen=True, slots=True)
class Result:
    """The answer of `ascent tune`. `near` are the settings that could still be faster, the likeliest first, `nearly`
    how many there are; `beyond` of them by more than NEAR. `groupings` are estimates."""

    base: Point
    best: Point
    rows: tuple[Row, ...]
    near: tuple[Near, ...]
    nearly: int
    beyond: int
    left_out: tuple[LeftOut, ...]
    failed: tuple[tuple[Point, str, str], ...]
    groupings: tuple[Grouping, ...]
    workload: str
    seconds: float
    notes: tuple[str, ...] = ()

    good = True

    @property
    def fragment(self) -> dict[str, Value]:
        """The configuration's keys whose values differ from the configured ones."""
        changed = self.best.changed(self.base)
        return {KEYS[name]: value for name, value in changed.items() if name in KEYS}

    @property
    def environment(self) -> dict[str, str]:
        """Variables to set before a run starts, beside the fragment."""
        return dict(BOUND) if self.best.binding == "cores" else {}

    def to_yaml(self) -> str:
        """The fragment as a file that stands beside a configuration."""
        values: dict[str, Any] = {}
        for key, value in self.fragment.items():
            config_file.put(values, key, value)
        head = [f"# ascent tune: the fastest of {len(self.rows)} settings that were measured. {self.workload}"]
        head += [f"# and in the environment: {name}={value}" for name, value in self.environment.items()]
        if not values:
            return "\n".join([*head, "# the configured settings are the fastest that were found", "{}", ""])
        return "\n".join([*head, config_file.dump(values)])

    def write(self, folder: Path) -> None:
        """`tune.yaml` and `tune.json`, by rename."""
        write_text(folder / "tune.yaml", self.to_yaml())
        write_json(folder / "tune.json", self.to_json())

    def to_json(self) -> dict[str, Any]:
        """One object for `--json`; speeds in tokens/s, gains as shares."""
        return {
            "schema": SCHEMA,
            "workload": self.workload,
            "seconds": round(self.seconds, 1),
            "settings": self.fragment,
            "environment": self.environment,
            "best": self.best.to_json(),
            "base": self.base.to_json(),
            "measured": [
                {
                    "settings": row.point.to_json(),
                    "gain": row.gain,
                    "short": row.short,
                    "tokens_per_second": None if row.speed is None else row.speed.mean,
                    "interval": None if row.speed is None else [row.speed.low, row.speed.high],
                    "probes": 0 if row.speed is None else row.speed.probes,
                    "exact": row.speed is not None and row.speed.exact,
                }
                for row in self.rows
            ],
            "could_be_better": [
                {"settings": each.point.to_json(), "gain": each.gain, "at_most": each.at_most} for each in self.near
            ],
            "could_be_better_count": self.nearly,
            "not_tried": [{"settings": each.points, "what": each.what, "why": each.why} for each in self.left_out],
            "failed": [{"settings": point.to_json(), "why": why, "text": text} for point, why, text in self.failed],
            "groupings": [each.to_json() for each in self.groupings],
            "notes": list(self.notes),
        }

    def to_text(self) -> str:
        """For people."""
        lines = [*(f"note: {note}" for note in self.notes), self.workload, "", *self._table(), ""]
        lines += self._answer()
        if self.near:
            lines += ["", f"could still be faster than the best, by what was seen ({self.nearly} settings):"]
            lines += [
                f"  {each.point.told(self.best)}: {each.gain:+.0%} expected, at most {each.at_most:+.0%}"
                for each in self.near
            ]
            if self.beyond:
                lines.append(f"  {self.beyond} of them by more than {NEAR:.0%}: a larger --budget would tell")
        lines += ["", "not tried:", *(f"  {each.to_text()}" for each in self.left_out)]
        if self.failed:
            lines += ["", "failed:"]
            lines += [f"  {point.told(self.base)}: {why}: {_first(text)}" for point, why, text in self.failed]
        if self.groupings:
            lines += ["", *grouping_table(self.groupings)]
        return "\n".join(lines)

    def _table(self) -> list[str]:
        shown = list(self.rows[:_ROWS])
        shown += [row for row in self.rows[_ROWS:] if row.point == self.base]
        cells = [("tokens/s", "gain", "settings")]
        for row in shown:
            speed = "short probe" if row.speed is None else row.speed.to_text() + ("" if row.speed.exact else " *")
            cells.append((speed, f"{row.gain:+.1%}", row.point.told(self.base)))
        wide = max(len(cell[0]) for cell in cells)
        lines = [f"{speed:>{wide}}  {gain:>7}  {settings}" for speed, gain, settings in cells]
        if len(shown) < len(self.rows):
            lines.append(f"and {len(self.rows) - len(shown)} slower ones (tune.json)")
        if any(row.speed is not None and not row.speed.exact for row in shown):
            lines.append("* in an engine that was started with larger settings")
        return lines

    def _answer(self) -> list[str]:
        if self.best == self.base:
            return ["the configured settings are the fastest that were found"]
        words = [f"{key}={_word(value)}" for key, value in self.fragment.items()]
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        gain = next(row.gain for row in self.rows if row.point == self.best)
        lines = [f"fastest: {gain:+.0%} tokens/s with", f"  {' '.join([*variables, *words])}"]
        if self.best.chunked_prefill is False and self.base.chunked_prefill is not False:
            lines.append("  vLLM warns of chunked prefill switched off: compare outputs before you rely on it")
        return lines


def result(search: Search, workload: str, groupings: Sequence[Grouping] = (), notes: Sequence[str] = ()) -> Result:
    """What a search that has ended found. Raises ValueError for one in which nothing was measured."""
    base, best = search.space.base, search.known.best()
    if best is None:
        raise ValueError("nothing was measured")
    if search.known.gain(best) < _NOTHING and search.known.whole(base):
        best = base
    near, nearly, beyond, left_out = _unknown(search, best)
    return Result(
        base=base,
        best=best,
        rows=tuple(
            Row(point, math.expm1(search.known.gain(point)), _speed(search, point), not search.known.whole(point))
            for point in search.known.measured()
        ),
        near=near,
        nearly=nearly,
        beyond=beyond,
        left_out=(*search.space.left_out, *left_out),
        failed=tuple((point, str(tried.why), tried.text) for point, tried in search.known.failed().items()),
        groupings=tuple(groupings),
        workload=workload,
        seconds=search.ledger.spent,
        notes=tuple(notes),
    )


def _speed(search: Search, point: Point) -> Speed | None:
    found = [each for each in search.known.whole(point) if each.tokens_per_second]
    if not found:
        return None
    logs = [math.log(each.tokens_per_second or 0.0) for each in found]
    mean, low, high = statistics.fmean(logs), None, None
    if len(logs) > 1:
        half = _T_975[len(logs) - 2] * statistics.stdev(logs) / math.sqrt(len(logs))
        low, high = math.exp(mean - half), math.exp(mean + half)
    return Speed(math.exp(mean), low, high, len(logs), found[0].exact)


def _unknown(search: Search, best: Point) -> tuple[tuple[Near, ...], int, int, list[LeftOut]]:
    """The points that weren't measured: those that could be faster than the best, and why others weren't tried."""
    tried = {each.point for each in search.ledger.tried}
    rest = [point for point in search.space.points if point not in tried]
    if not rest:
        return (), 0, 0, []
    expected = search.known.expected(rest)
    own = search.known.gain(best)
    gains, most = np.expm1(expected.mean - own), np.expm1(expected.at_most() - own)
    order = [int(place) for place in np.argsort(-most) if most[place] > 0]
    near = tuple(Near(rest[place], float(gains[place]), float(most[place])) for place in order[:_MOST_TOLD])
    slower = len(rest) - len(order)
    left_out = []
    if order:
        left_out.append(LeftOut(len(order), "what could still be faster", _why_ended(search)))
    if slower:
        left_out.append(LeftOut(slower, "other combinations", "by what was seen of their parts they are slower"))
    return near, len(order), int(np.sum(most > NEAR)), left_out


def _why_ended(search: Search) -> str:
    if search.out_of_budget:
        return f"the budget of {search.budget:.0f} s was spent"
    return "too little was to be expected of each to be worth a probe"


def _first(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _word(value: Value) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
