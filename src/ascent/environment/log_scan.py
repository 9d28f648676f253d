"""Read a log of any size once and keep what can name a fault: each distinct line, and the series of numbers.

Two lines count as the same when they differ in digits and the letters a to f only (times, addresses, request ids);
status codes make a difference, though. That leaves a few thousand lines of a log of hundreds of megabytes. Where a
log's lines really are distinct (completions printed in full), the first `DISTINCT_BYTES` are kept, and of the lines
after that the last `LAST_LINES` with a word of failure.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import BinaryIO

CHUNK = 4 << 20
DISTINCT_BYTES = 1 << 20
LAST_LINES = 3_000
LONGEST_LINE = 20_000
SERIES = 2_000
SHORTEST_KEY = 5  # a line of hardly more than digits, such as a code, is itself
START_LINES, END_LINES = 400, 60
CODED_LINES = 2_000
MOST_CODES = 10_000
_NOISE = b"0123456789abcdefABCDEF"
# Words without which an error is hardly ever stated; parts that serve both spellings (Error, error).
_ALARM_WORDS = (
    b"rror", b"ERROR", b"xception", b"ailed", b"FAIL", b"ssert", b"nan", b"illed", b"annot", b"imes out", b"imeout",
    b"ut of mem", b"o such file", b"efused", b"FATAL", b"atal", b"exit", b"core dumped",
)  # fmt: skip
_CODED = re.compile(rb"code|result|ret\b|failed ?: ?\d|errno|\be[a-z]\d{4}\b|\be\d{5}\b|ret is", re.IGNORECASE)
_CODES = re.compile(rb"(?<![\d.])\d{6}(?![\d.])|\bE[A-Z]\d{4}\b|\bE\d{5}\b|-80\d\d\b")
_SERIES_WORDS = (
    b"grad_norm",
    b"sampling/",
    b"logp_difference",
    b"importance_sampling",
    b"'reward'",
    b'"reward"',
    b"'kl'",
    b"'entropy'",
    b"completions/clipped_ratio",
    b"actor/",
    b"loss:",
    b"loss =",
    b"loss=",
    b"'loss'",
    b'"loss"',
    b"/pause",
    b"/resume",
)
_GAUGE_WORDS = (b"cache usage", b"emory", b"MiB", b"GiB")


@dataclass(frozen=True)
class Line:
    """A line of the log, counted from 1, without its end. ``last`` is where a line like it stood last, 0: not known.

    ``pieces`` is how many lines it was put together from.
    """

    number: int
    text: str
    last: int = 0
    pieces: int = 1


@dataclass
class Scan:
    """What was kept: distinct ``lines`` in order, and up to 4000 lines each of ``series`` (metrics of training) and
    ``gauges`` (memory and cache), first and last.

    ``start`` and ``end`` are the first and last lines as they stand, alike or not. ``binary``: it isn't text.
    """

    lines: list[Line] = field(default_factory=list)
    series: list[Line] = field(default_factory=list)
    gauges: list[Line] = field(default_factory=list)
    start: list[Line] = field(default_factory=list)
    end: list[Line] = field(default_factory=list)
    binary: bool = False
    line_count: int = 0
    byte_count: int = 0
    thinned: bool = False


def is_series(text: str) -> bool:
    """Whether a line is a row of a training's metrics."""
    line = text.encode("utf-8", errors="replace")
    return any(word in line for word in _SERIES_WORDS)


def scan(stream: BinaryIO) -> Scan:
    """Read a stream to its end in pieces of 4 MiB; memory stays under about 60 MiB whatever its size."""
    result = Scan()
    collector = _Collector(result)
    for piece in _pieces(stream):
        collector.add(piece)
    collector.finish()
    return result


def scan_text(text: str) -> Scan:
    """`scan` for text that is already there."""
    result = Scan()
    collector = _Collector(result)
    collector.add(text.encode("utf-8", errors="replace"))
    collector.finish()
    return result


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    """The stream in pieces that end at a line's end."""
    rest = b""
    while block := stream.read(CHUNK):
        block = rest + block
        cut = block.rfind(b"\n") + 1
        if cut == 0 and len(block) < 4 * CHUNK:
            rest = block
            continue
        cut = cut or len(block)
        rest = block[cut:]
        yield block[:cut]
    if rest:
        yield rest


class _Ends:
    """The lines of some keys: the first `SERIES` of them, and the last."""

    def __init__(self, kept: list[Line]) -> None:
        self.keys: set[bytes] = set()
        self.kept = kept
        self.last: deque[tuple[int, bytes]] = deque(maxlen=SERIES)

    def add(self, keys: list[bytes], lines: list[bytes], before: int) -> None:
        wanted = self.keys
        for index, key in enumerate(keys):
            if key in wanted:
                if len(self.kept) < SERIES:
                    self.kept.append(Line(before + index + 1, _decoded(lines[index])))
                else:
                    self.last.append((before + index + 1, lines[index][:LONGEST_LINE]))

    def finish(self) -> None:
        self.kept.extend(Line(number, _decoded(line)) for number, line in self.last)


class _Collector:
    def __init__(self, result: Scan) -> None:
        self.result = result
        self.seen: set[bytes] = set()
        self.last: dict[bytes, int] = {}
        self.key_of: dict[int, bytes] = {}
        self.coded: set[bytes] = set()
        self.codes: set[tuple[bytes, ...]] = set()
        self.series = _Ends(result.series)
        self.gauges = _Ends(result.gauges)
        self.end: deque[tuple[int, bytes]] = deque(maxlen=END_LINES)
        self.last_lines: deque[tuple[int, bytes]] = deque(maxlen=LAST_LINES)
        self.kept = 0

    def add(self, piece: bytes) -> None:
        if b"\0" in piece:  # UTF-16, a file with holes, or no text at all
            self.result.binary = self.result.binary or _is_binary(piece)
            piece = piece.replace(b"\0", b"")
        before = self.result.line_count
        lines = piece.split(b"\n")
        if lines and lines[-1] == b"":
            lines.pop()
        keys = piece.translate(None, _NOISE).split(b"\n")[: len(lines)]
        keys = [key if len(key) > SHORTEST_KEY else line for key, line in zip(keys, lines, strict=True)]
        self.result.line_count += len(lines)
        self.result.byte_count += len(piece)
        if before < START_LINES:
            numbered = enumerate(lines[: START_LINES - before], before + 1)
            self.result.start += [Line(number, _decoded(line)) for number, line in numbered]
        start = max(0, len(lines) - END_LINES)
        self.end.extend(enumerate(lines[start:], before + start + 1))
        first = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
        fresh = sorted(index for key, index in first.items() if key not in self.seen)
        if self.kept > DISTINCT_BYTES:
            self.result.thinned = True
            fresh = self._alarming(lines, fresh)
        for index in fresh:
            self._keep(keys[index], lines[index], before + index + 1)
        for key, index in dict(zip(keys, range(len(keys)), strict=True)).items():
            if key in self.last:
                self.last[key] = before + index + 1
        if self.coded:
            self._other_codes(keys, lines, before)
        for series in (self.series, self.gauges):
            if series.keys:
                series.add(keys, lines, before)

    def _alarming(self, lines: list[bytes], fresh: list[int]) -> list[int]:
        """Those of the lines that hold a word of failure; of very many the last, which are all that is kept."""
        found: list[int] = []
        for end in range(len(fresh), 0, -LAST_LINES):
            found = self._with_alarm_word(lines, fresh[max(0, end - LAST_LINES) : end]) + found
            if len(found) >= LAST_LINES:
                break
        return found

    def _with_alarm_word(self, lines: list[bytes], fresh: list[int]) -> list[int]:
        joined = b"\n".join([lines[index] for index in fresh])
        starts = list(accumulate((len(lines[index]) + 1 for index in fresh), initial=0))
        found: set[int] = set()
        for word in _ALARM_WORDS:
            position = joined.find(word)
            while position >= 0:
                place = bisect_right(starts, position) - 1
                found.add(fresh[place])
                position = joined.find(word, starts[place + 1])
        return sorted(found)

    def _keep(self, key: bytes, line: bytes, number: int) -> None:
        self.kept += len(line) + 1
        if self.kept > DISTINCT_BYTES:
            self.last_lines.append((number, line[:LONGEST_LINE]))
            return
        self.seen.add(key)
        self.last[key] = number
        self.key_of[number] = key
        if any(word in line for word in _SERIES_WORDS):
            self.series.keys.add(key)
        elif any(word in line for word in _GAUGE_WORDS):
            self.gauges.keys.add(key)
        if _CODED.search(line):
            self.coded.add(key)
            self.codes.add((key, *_CODES.findall(line)))
        self.result.lines.append(Line(number, _decoded(line)))

    def _other_codes(self, keys: list[bytes], lines: list[bytes], before: int) -> None:
        """Lines that are alike but for a status code are different faults."""
        coded = self.coded
        alike = [index for index, key in enumerate(keys) if key in coded]
        if len(alike) > 2 * CODED_LINES:  # a flood of errors: its beginning and end in each piece
            alike = alike[:CODED_LINES] + alike[-CODED_LINES:]
        for index in alike:
            if len(self.codes) < MOST_CODES:
                entry = (keys[index], *_CODES.findall(lines[index]))
                if len(entry) > 1 and entry not in self.codes:
                    self.codes.add(entry)
                    self.result.lines.append(Line(before + index + 1, _decoded(lines[index])))

    def finish(self) -> None:
        self.result.lines = [
            Line(line.number, line.text, self.last.get(self.key_of.get(line.number, b"\n"), 0))
            for line in self.result.lines
        ]
        self.result.end = [Line(number, _decoded(line)) for number, line in self.end]
        self.result.lines.extend(Line(number, _decoded(line)) for number, line in self.last_lines)
        self.result.lines.sort(key=lambda line: line.number)
        self.series.finish()
        self.gauges.finish()


def _is_binary(piece: bytes) -> bool:
    """Whether more than every tenth byte is neither text nor the zero of UTF-16."""
    sample = piece[:4096]
    if sample[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return False
    odd = sum(byte < 9 or 13 < byte < 27 or 27 < byte < 32 for byte in sample)
    halves = sample[1::2].count(0), sample[0::2].count(0)
    return odd > len(sample) // 10 and max(halves) < len(sample) // 2 - len(sample) // 20


def _decoded(line: bytes) -> str:
    if len(line) > LONGEST_LINE:  # a progress bar's line, or a file without line ends
        line = line[: LONGEST_LINE // 4] + b" ... " + line[-LONGEST_LINE * 3 // 4 :]
    return line.decode("utf-8", errors="replace").rstrip("\r")
