"""An index over a run's completions: their scalars in memory, in DuckDB; texts and tokens stay in the files.

The run directory may be read-only, and another process is writing into it: nothing is written, files are read when they
are new or changed, newest first, and what can't be read is left out and named.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from ascent.report.page.index_columns import READ, TABLE, index_rows
from ascent.report.page.rollout_files import (
    READ_ERRORS,
    IndexedFile,
    RolloutFile,
    UnreadableError,
    list_files,
    open_file,
    why,
)
from ascent.report.page.run_files import Problem

_AT_ONCE = 20_000  # rows that are put into the index in one go: each go costs milliseconds
_REST = 2.0  # seconds between two looks at the folder
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": 2,  # a training is at work beside
    "memory_limit": "600MB",
    "autoinstall_known_extensions": False,  # nothing is fetched
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the index is: files that were read, of those that there are."""

    done: int = 0
    total: int = 0

    @property
    def complete(self) -> bool:
        """Whether everything that was there at the last look is in."""
        return self.done >= self.total


@dataclass(slots=True)
class _Pending:
    """Rows that were read and are not yet in the table."""

    tables: list[pa.Table] = field(default_factory=list)
    files: list[IndexedFile] = field(default_factory=list)
    rows: int = 0


class RolloutIndex:
    """The index of one run. Its methods may be called from any thread; `close` ends it."""

    def __init__(self, run: Path) -> None:
        self.folder = run / "rollouts"
        self.files: dict[int, IndexedFile] = {}
        self.progress = Progress()
        self.version = 0  # rises when rows come or go
        self._problems: dict[RolloutFile, str] = {}
        self._unlistable: str | None = None
        self._db = duckdb.connect(":memory:", config=_SETTINGS)
        self._db.execute(TABLE)
        self._refreshing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._looked = 0.0
        self._next = 0
        self._closed = False

    @property
    def problems(self) -> list[Problem]:
        """Files that can't be read, and why."""
        if self._unlistable is not None:
            return [Problem("rollouts", f"can't be listed: {self._unlistable}")]
        return [Problem(f"rollouts/{file.name}", f"can't be read: {told}") for file, told in self._problems.items()]

    @contextlib.contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection to the index for one thread."""
        with self._db.cursor() as cursor:
            yield cursor

    def rows(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[dict[str, Any]]:
        """The answer to a query; values are given apart from it, never inside."""
        with self.cursor() as cursor:
            cursor.execute(sql, values)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def freshen(self, wait: float = 0.8) -> None:
        """See to it that the index is a few seconds old at most; after `wait` seconds it goes on beside."""
        thread = self._thread
        if thread is None or not thread.is_alive():
            if time.monotonic() - self._looked < _REST:
                return
            thread = self._thread = threading.Thread(target=self.refresh, name="ascent-report-index", daemon=True)
            thread.start()
        thread.join(wait)

    def refresh(self) -> None:
        """Look at the folder and take in what is new; forget what is gone."""
        with self._refreshing:
            try:
                files, self._unlistable = list_files(self.folder), None
            except OSError as error:
                files, self._unlistable = [], why(error)
            self._forget(files)
            known = {each.file for each in self.files.values()} | set(self._problems)
            new = [file for file in files if file not in known]
            self.progress = Progress(len(files) - len(new), len(files))
            pending = _Pending()
            for file in new:
                if self._closed:
                    return
                self._read(file, pending)
                self.progress = Progress(self.progress.done + 1, self.progress.total)
            self._put(pending)
            self._looked = time.monotonic()

    def close(self) -> None:
        """Free the memory."""
        self._closed = True
        with self._refreshing:
            self._db.close()

    def _read(self, file: RolloutFile, pending: _Pending) -> None:
        number, self._next = self._next, self._next + 1
        try:
            opened, indexed = open_file(self.folder, file, number)
        except UnreadableError as error:
            self._problems[file] = str(error)
            return
        tables = []
        try:
            with opened:
                columns = [name for name in READ if name in indexed.columns]
                for group, row in enumerate(indexed.starts):
                    if self._closed:
                        return
                    piece = opened.read_row_group(group, columns=columns, use_threads=False)
                    tables.append(index_rows(piece, number, row))
        except READ_ERRORS as error:
            self._problems[file] = why(error)
            return
        pending.tables += tables
        pending.files.append(indexed)
        pending.rows += indexed.rows
        if pending.rows >= _AT_ONCE or len(self.files) < 10:  # the first page has something to show soon
            self._put(pending)

    def _put(self, pending: _Pending) -> None:
        """Into the table; a file is known from the moment its rows can be found."""
        if not pending.files:
            return
        whole = pa.concat_tables(pending.tables, promote_options="permissive") if pending.tables else None
        try:
            if whole is not None and len(whole):
                with self.cursor() as cursor:
                    cursor.register("batch", whole)
                    cursor.execute("INSERT INTO completions BY NAME SELECT * FROM batch")
                    cursor.unregister("batch")
                pa.default_memory_pool().release_unused()
        except duckdb.Error as error:  # such as memory that is used up
            self._problems |= {each.file: why(error) for each in pending.files}
        else:
            self.files |= {each.number: each for each in pending.files}
        self.version += 1
        pending.tables, pending.files, pending.rows = [], [], 0

    def _forget(self, files: Sequence[RolloutFile]) -> None:
        there = set(files)
        gone = [number for number, each in self.files.items() if each.file not in there]
        if gone:
            with self.cursor() as cursor:
                cursor.execute("DELETE FROM completions WHERE file IN (SELECT unnest(?))", [gone])
            self.files = {number: each for number, each in self.files.items() if number not in set(gone)}
            self.version += 1
        self._problems = {file: told for file, told in self._problems.items() if file in there}
