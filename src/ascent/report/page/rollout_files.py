"""The rollout files of a run: which there are, which count, and how rows are read out of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ascent.report.page.run_files import Stamp

KNOWN_SCHEMA = 3
_NAME = re.compile(
    r"(?:packed-(?P<first>\d+)-(?P<last>\d+)|(?P<generation>\d+)-rank\d+|eval-(?P<evaluation>\d+)-.*)\.parquet"
)
# What reading a damaged file raises: pyarrow's errors of content are ValueError, TypeError or KeyError besides.
READ_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, KeyError)


class UnreadableError(Exception):
    """A rollout file, or a row of it, that can't be read; the message says why."""


@dataclass(frozen=True, slots=True)
class RolloutFile:
    """A file as it lies there, with its generations (or its evaluation's number)."""

    name: str
    stamp: Stamp
    first: int  # generations
    last: int
    evaluation: bool

    @property
    def packed(self) -> bool:
        """Whether small files were merged into this one."""
        return self.name.startswith("packed-")


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file whose rows are in the index; row group i holds the rows from `starts[i]` on."""

    number: int
    file: RolloutFile
    rows: int
    starts: tuple[int, ...]
    columns: frozenset[str]


def list_files(folder: Path) -> list[RolloutFile]:
    """The files that count, newest first. Small files of generations that are packed are what a kill left of them.

    Raises OSError where the folder can't be listed; one that isn't there has no files.
    """
    found = []
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return []
    for entry in entries:
        match = _NAME.fullmatch(entry.name)
        if match is None:
            continue
        try:
            stat = entry.stat()
        except FileNotFoundError:
            continue  # moved away between the two calls
        numbers = {key: int(value) for key, value in match.groupdict().items() if value is not None}
        first = numbers.get("first", numbers.get("generation", numbers.get("evaluation", 0)))
        stamp = stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
        found.append(RolloutFile(entry.name, stamp, first, numbers.get("last", first), "evaluation" in numbers))
    return sorted(_counting(found), key=lambda file: (file.evaluation, file.last, file.name), reverse=True)


def open_file(folder: Path, file: RolloutFile, number: int) -> tuple[pq.ParquetFile, IndexedFile]:
    """A file and what its footer says. Raises UnreadableError."""
    try:
        opened = pq.ParquetFile(folder / file.name)
        metadata = opened.metadata
        version = (opened.schema_arrow.metadata or {}).get(b"ascent.rollouts", b"")
        if not version.isdigit():
            raise UnreadableError("no rollout file: its metadata has no ascent.rollouts")
        if int(version) > KNOWN_SCHEMA:
            raise UnreadableError(
                f"schema {int(version)}, written by a newer release; this one reads up to {KNOWN_SCHEMA}"
            )
        starts, row = [], 0
        for group in range(metadata.num_row_groups):
            starts.append(row)
            row += metadata.row_group(group).num_rows
    except READ_ERRORS as error:
        raise UnreadableError(why(error)) from error
    return opened, IndexedFile(number, file, row, tuple(starts), frozenset(opened.schema_arrow.names))


def read_rows(folder: Path, file: IndexedFile, rows: Sequence[int], columns: Iterable[str]) -> list[dict[str, Any]]:
    """The named columns of some rows of a file, in the order of `rows`; no more than their row groups is read. Columns
    that the file lacks are None.

    Raises UnreadableError, also where the file was replaced since it was indexed.
    """
    names = list(columns)
    there = [name for name in names if name in file.columns]
    found: dict[int, dict[str, Any]] = {}
    try:
        with pq.ParquetFile(folder / file.file.name) as opened:
            if opened.metadata.num_rows != file.rows:
                raise UnreadableError("it was replaced a moment ago")
            for group in sorted({group_of(file, row) for row in rows}):
                table = opened.read_row_group(group, columns=there)
                start = file.starts[group]
                wanted = [row for row in rows if start <= row < start + len(table)]
                for row, content in zip(wanted, table.take([row - start for row in wanted]).to_pylist(), strict=True):
                    found[row] = {name: content.get(name) for name in names}
    except READ_ERRORS as error:
        raise UnreadableError(why(error)) from error
    return [found[row] for row in rows]


def group_of(file: IndexedFile, row: int) -> int:
    """The row group that holds a row."""
    return next(group for group in reversed(range(len(file.starts))) if file.starts[group] <= row)


def why(error: Exception) -> str:
    """An error in a line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]


def _counting(files: Sequence[RolloutFile]) -> list[RolloutFile]:
    packed = [file for file in files if file.packed]
    # of packed files that overlap, the widest is whole
    widest = [
        file
        for file in packed
        if not any(o is not file and o.first <= file.first and file.last <= o.last for o in packed)
    ]
    return [
        *widest,
        *(
            file
            for file in files
            if not file.packed
            and (file.evaluation or not any(each.first <= file.first <= each.last for each in widest))
        ),
    ]
