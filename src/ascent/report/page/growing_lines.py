"""JSON lines of a file that another process is appending to: each line is read once."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class GrowingLines:
    """The whole lines of a file so far. `needed` are keys without which a line is no use."""

    path: Path
    needed: tuple[str, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)  # numbers of lines that can't be understood, from 1
    cut_short: bool = False  # the last line has no end yet
    error: str | None = None  # why the file can't be read
    _file: tuple[int, int] | None = None  # device and inode
    _offset: int = 0
    _lines: int = 0

    def refresh(self) -> None:
        """Read what is new. A file that was replaced or became shorter is read anew; one that is gone has no lines."""
        try:
            with open(self.path, "rb") as file:
                stat = os.fstat(file.fileno())
                if self._file != (stat.st_dev, stat.st_ino) or stat.st_size < self._offset:
                    self._begin((stat.st_dev, stat.st_ino))
                file.seek(self._offset)
                added = file.read()
        except FileNotFoundError:
            self._begin(None)
            return
        except OSError as error:
            self._begin(None)
            self.error = error.strerror or str(error)
            return
        self.error = None
        whole, newline, rest = added.rpartition(b"\n")
        self.cut_short = bool(rest)
        if newline:
            self._offset += len(whole) + 1
            for line in whole.split(b"\n"):
                self._add(line)

    def _begin(self, file: tuple[int, int] | None) -> None:
        self.rows, self.wrong, self.cut_short, self.error = [], [], False, None
        self._file, self._offset, self._lines = file, 0, 0

    def _add(self, line: bytes) -> None:
        self._lines += 1
        if not line.strip():
            return
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict) and all(row.get(key) is not None for key in self.needed):
            self.rows.append(row)
        else:
            self.wrong.append(self._lines)
