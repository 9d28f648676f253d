"""Searching the texts of completions: they lie in the files, and are read through, newest first."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ascent.report.page.rollout_files import READ_ERRORS, IndexedFile
from ascent.report.page.rollout_filter import Filter
from ascent.report.page.rollout_index import RolloutIndex

MOST_SECONDS = 8.0
MOST_HITS = 2_000_000
_THREADS = 2
_GROUPS = 64  # row groups between two looks at the clock


@dataclass(frozen=True, slots=True)
class Hits:
    """Where a text was found: the places (file and row, int32 each) among the rows that fit the filter, and how many of
    those rows were read through before time was up."""

    files: NDArray[np.int32]
    rows: NDArray[np.int32]
    searched: int
    of: int

    @property
    def complete(self) -> bool:
        """Whether everything was read through."""
        return self.searched >= self.of


@dataclass(frozen=True, slots=True)
class _Piece:
    """Row groups of one file, the newest last, and the rows of them that fit the filter."""

    file: IndexedFile
    groups: tuple[int, ...]
    rows: NDArray[np.int32]


def search(index: RolloutIndex, wanted: Filter, seconds: float = MOST_SECONDS) -> Hits:
    """Find `wanted.q` in the rows that fit the rest of the filter. A text without capitals is found in either case.

    It ends after `seconds` with what was found until then. Files that vanish meanwhile count as read.
    """
    pieces = _pieces(index, wanted)
    total = sum(len(piece.rows) for piece in pieces)
    until = time.monotonic() + seconds
    found: list[tuple[int, NDArray[np.int32]]] = []
    searched = hits = 0
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="ascent-report-search") as pool:
        for some in _in_turn(pieces, 2 * _THREADS):
            if time.monotonic() > until or hits >= MOST_HITS:
                break
            read = pool.map(lambda piece: _matches(index.folder, piece, wanted.searched, wanted.q), some)
            for piece, rows in zip(some, read, strict=True):
                searched += len(piece.rows)
                hits += len(rows)
                found.append((piece.file.number, rows))
    numbers = [np.full(len(rows), number, np.int32) for number, rows in found]
    nothing = np.zeros(0, np.int32)
    return Hits(
        np.concatenate([nothing, *numbers]), np.concatenate([nothing, *(rows for _, rows in found)]), searched, total
    )


def _pieces(index: RolloutIndex, wanted: Filter) -> list[_Piece]:
    """What is to be read through, newest first: of each file the row groups in which some rows fit, a few at a time, as
    opening a file costs as much as reading some of them."""
    condition, values = wanted.condition()
    with index.cursor() as cursor:
        cursor.execute(f"SELECT file, row FROM completions WHERE {condition} ORDER BY file, row", values)
        fitting = cursor.fetchnumpy()
    files, rows = np.asarray(fitting["file"]), np.asarray(fitting["row"])
    pieces = []
    for file in sorted(index.files.values(), key=lambda each: (each.file.evaluation, each.file.last), reverse=True):
        first, end = np.searchsorted(files, [file.number, file.number + 1])
        of_file = rows[first:end]
        groups = np.searchsorted(file.starts, of_file, side="right") - 1
        distinct = np.unique(groups).tolist()
        for start in reversed(range(0, len(distinct), _GROUPS)):
            some = distinct[start : start + _GROUPS]
            inside = (groups >= some[0]) & (groups <= some[-1])
            pieces.append(_Piece(file, tuple(some), of_file[inside]))
    return pieces


def _in_turn(pieces: Sequence[_Piece], most: int) -> Iterator[Sequence[_Piece]]:
    for first in range(0, len(pieces), most):
        yield pieces[first : first + most]


def _matches(folder: Path, piece: _Piece, column: str, text: str) -> NDArray[np.int32]:
    """The fitting rows of a piece in whose column the text occurs."""
    if column not in piece.file.columns:
        return np.zeros(0, np.int32)
    found: list[NDArray[np.int32]] = []
    try:
        with pq.ParquetFile(folder / piece.file.file.name) as opened:
            for group in piece.groups:
                table = opened.read_row_group(group, columns=[column], use_threads=False)
                matching = np.flatnonzero(_contains(table.column(column), text)).astype(np.int32)
                found.append(matching + np.int32(piece.file.starts[group]))
    except READ_ERRORS:
        return np.zeros(0, np.int32)  # gone, or replaced: the next look at the folder tells
    return np.intersect1d(np.concatenate(found), piece.rows, assume_unique=True)


def _contains(column: pa.ChunkedArray, text: str) -> NDArray[np.bool_]:
    ignore_case = text == text.lower()
    matching = pc.match_substring(column, text, ignore_case=ignore_case)
    return pc.fill_null(matching, False).combine_chunks().to_numpy(zero_copy_only=False)
