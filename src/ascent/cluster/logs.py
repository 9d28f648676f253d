"""Logs of processes on other machines: whole in files of the run directory, and their new lines shown to the user."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_MOST = 64 * 1024  # bytes of one file that are sent at once; what a process prints faster is only in its file
_KEPT = 12  # lines that are shown again when a process ends badly


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a process printed. `source`: which process, such as "rank 3"."""

    source: str
    text: str


class Tail:
    """The new whole lines of a file, from the end that it had."""

    def __init__(self, path: Path, source: str) -> None:
        self.path, self._source = path, source
        self._offset = path.stat().st_size if path.exists() else 0

    def new_lines(self, *, to_the_end: bool = False) -> list[Line]:
        """What was written since the last call; with `to_the_end` also a last line that isn't ended."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                read = file.read(_MOST + 1)
        except FileNotFoundError:
            return []
        if len(read) > _MOST:
            size = self.path.stat().st_size
            skipped, self._offset = size - self._offset - _MOST, size
            told = f"... {skipped} bytes more are in {self.path}"
            return [*self._lines(read[:_MOST]), Line(self._source, told)] if skipped > 0 else self._lines(read)
        end = len(read) if to_the_end else read.rfind(b"\n") + 1
        self._offset += end
        return self._lines(read[:end])

    def _lines(self, read: bytes) -> list[Line]:
        lines = read.decode("utf-8", "replace").replace("\r", "\n").split("\n")
        return [Line(self._source, _printable(line)) for line in lines if line.strip()]


class Shown:
    """Shows lines of several machines on standard error, and keeps the last ones of each process."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], deque[str]] = {}

    def show(self, node: str, lines: Iterable[Line]) -> None:
        """Print the lines that came from a node."""
        for line in lines:
            self._last.setdefault((node, line.source), deque(maxlen=_KEPT)).append(line.text)
            print(f"[{node} {line.source}] {line.text}", file=sys.stderr)
        sys.stderr.flush()

    def last(self, node: str, source: str) -> str:
        """The last lines of a process, one below the other."""
        return "\n".join(self._last.get((node, source), ()))


def _printable(line: str) -> str:
    """Without what would move the cursor or change colours: a program's output may hold it."""
    return "".join(letter if letter.isprintable() or letter == "\t" else "\N{REPLACEMENT CHARACTER}" for letter in line)
