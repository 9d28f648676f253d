"""A scanned log, prepared for looking things up: where a pattern stands, and what stands near it."""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ascent.environment import model_text, paste, reports, signs
from ascent.environment.known_faults import Pattern
from ascent.environment.log_scan import Line, Scan, is_series
from ascent.environment.measures import measure
from ascent.environment.versions import inside

_PIECE, _OVERLAP = 2_000, 400
_MAY_STATE_VERSION = re.compile(r"\d\.\d", re.A)
_MOST_PLACES = 400
# One place of a log: this many distinct lines, or lines of the file, apart. Ranks that write the same lines in turn
# count once in distinct lines.
_DISTINCT_APART, _LINES_APART = 45, 120


@dataclass(frozen=True)
class Evidence:
    """A line that supports a diagnosis. ``line`` 0: it holds for the log as a whole."""

    line: int
    text: str


@dataclass(frozen=True)
class Found:
    """Evidence and its place among the distinct lines, -1 where it has none."""

    evidence: Evidence
    place: int = -1


def _pieces(text: str) -> Iterator[str]:
    """A line in pieces of bounded length: the lines of a message that was printed as one, the states of a bar."""
    whole = text.replace("\\n", "\n").replace("\r", "\n")
    parts = [text] if whole == text else whole.splitlines()
    for part in parts:
        for start in range(0, max(1, len(part)), _PIECE):
            yield part[start : start + _PIECE + _OVERLAP]


class Log:
    """What a log says by itself: text that the model wrote is left out, pastes are mended."""

    def __init__(self, scanned: Scan) -> None:
        self.scanned = scanned
        mended = paste.repair(scanned.lines)
        left_out = model_text.foreign(mended.pieces)
        own = [line for line in mended.lines if line.number not in left_out]
        self.lines = [Line(line.number, piece, line.last, line.pieces) for line in own for piece in _pieces(line.text)]
        self.text = "\n".join(line.text.lower().replace("\n", " ") for line in self.lines)
        self.starts = list(accumulate(map(len, self.text.split("\n")), lambda start, size: start + size + 1, initial=0))
        self.readings = measure(_mended_scan(scanned, mended))
        self._cache: dict[tuple[str, bool], list[Found]] = {}

    @functools.cached_property
    def versions(self) -> dict[str, str]:
        """Package versions that the log states."""
        stated = [line.text for line in self.lines if len(line.text) < 400 and _MAY_STATE_VERSION.search(line.text)]
        environment = reports.parse("\n".join(stated[:2000]))
        return {name: package.version for name, package in environment.packages.items()}

    def places(self, pattern: Pattern) -> list[Found]:
        """Where a pattern stands, in order of the log; one without a place for readings of numbers and versions."""
        key = (pattern.text, pattern.strict)
        if key not in self._cache:
            self._cache[key] = self._places(pattern)
        return self._cache[key]

    def place_of(self, position: int) -> int:
        """The place of a position in ``text``."""
        return bisect_right(self.starts, position) - 1

    def near(self, one: int, other: int) -> bool:
        """Whether two places are one: by distinct lines, or by first and last occurrence in the file."""
        if abs(one - other) <= _DISTINCT_APART and self._lines_between(one, other) <= 20 * _LINES_APART:
            return True
        return self._lines_between(one, other) <= _LINES_APART

    def same_line(self, one: int, other: int) -> bool:
        """Whether two places are one line of the file."""
        return self.lines[one].number == self.lines[other].number

    def around(self, place: int, lines: int = 30) -> Sequence[Line]:
        """The distinct lines near a place."""
        return self.lines[max(0, place - lines) : place + lines]

    def _lines_between(self, one: int, other: int) -> int:
        a, b = self.lines[one], self.lines[other]
        return min(
            abs(first - second) for first in (a.number, a.last or a.number) for second in (b.number, b.last or b.number)
        )

    def _places(self, pattern: Pattern) -> list[Found]:
        if pattern.measures:
            numbers = [self.readings[name] for name in pattern.measures if name in self.readings]
            return [Found(Evidence(min(numbers), self._text_at(min(numbers))))] if numbers else []
        if pattern.version:
            name, span = pattern.version
            version = self.versions.get(name, "")
            return [Found(Evidence(0, f"{name} {version}"))] if version and inside(version, span) else []
        found = {place for hint, regex in pattern.alternatives for place in self._matching(hint, regex, pattern)}
        return [
            Found(Evidence(self.lines[place].number, short(self.lines[place].text)), place)
            for place in self._without_repeats(found)
        ]

    def _without_repeats(self, found: set[int]) -> list[int]:
        """The places in order, without lines put together of pieces of which one matches by itself."""
        single = {self.lines[place].number for place in found if self.lines[place].pieces == 1}
        kept = []
        for place in sorted(found):
            line = self.lines[place]
            if line.pieces == 1 or not any(line.number <= number < line.number + line.pieces for number in single):
                kept.append(place)
        return kept

    def _matching(self, hint: str, regex: re.Pattern[str], pattern: Pattern) -> Iterator[int]:
        """Places of the lines that match; only lines with the pattern's literal piece are tried."""
        position = self.text.find(hint)
        count = 0
        while position >= 0 and count < (1 if pattern.anywhere else _MOST_PLACES):
            place = self.place_of(position)
            start, end = self.starts[place], self.starts[place + 1] - 1
            mild = pattern.strict and signs.coped_with(self.text, start, end)
            if not mild and regex.search(self.text, start, end):
                count += 1
                yield place
            position = self.text.find(hint, end)

    def _text_at(self, number: int) -> str:
        return next((short(line.text) for line in self.scanned.lines if line.number == number), "")


def _mended_scan(scanned: Scan, mended: paste.Mended) -> Scan:
    """The scan with its figures as they were before the paste; a long log is no paste that was wrapped."""
    if scanned.line_count > len(scanned.start):
        return replace(scanned, lines=mended.lines)
    start = paste.repair(scanned.start)
    return replace(
        scanned, lines=start.lines, start=start.whole, series=[line for line in start.whole if is_series(line.text)]
    )


def short(text: str) -> str:
    """A line's beginning and end, at most 300 characters."""
    text = text.strip()
    return text if len(text) <= 300 else f"{text[:220]} ... {text[-70:]}"
