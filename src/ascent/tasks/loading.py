"""From the name of a file to tasks; unusable rows are reported."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent.errors import InputError
from ascent.tasks.formats import task_from_any_row
from ascent.tasks.rows import RowError, parse_json
from ascent.types import Task

_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
_MOST_REPORTED = 5


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that gave no task. `line` counts from 1: the line, or the element of a JSON array or parquet
    table."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}"


@dataclass(frozen=True, slots=True)
class LoadedTasks:
    """The usable tasks of a source in its order, and the rows that were not usable."""

    source: str
    tasks: tuple[Task, ...]
    rejected: tuple[RejectedRow, ...] = ()

    def report(self, most: int = _MOST_REPORTED) -> str:
        """What was loaded, for people: one line, and one more for each of the first `most` rejected rows."""
        lines = [f"{self.source}: {_count(len(self.tasks), 'task')}"]
        if self.rejected:
            lines[0] += f", {_count(len(self.rejected), 'row')} rejected"
            lines += [f"  {row}" for row in self.rejected[:most]]
        if len(self.rejected) > most:
            lines.append(f"  and {len(self.rejected) - most} more")
        return "\n".join(lines)


def load_tasks(source: str | Path, *, visible: int = 1) -> LoadedTasks:
    """The tasks of a source.

    Args:
        source: the path of a .jsonl, .jsonl.gz, .json (an array), .json.gz or
            .parquet
            file (parquet needs pyarrow). The format of each row is recognised by its keys.
        visible: how many tests of a row the prompt may show, for formats that don't say it themselves (MBPP,
            APPS).

    Raises:
        InputError: no such source, an unreadable file, two tasks with the same id, or no usable row at all.
    """
    if visible < 0:
        raise InputError(f"visible must be at least 0, not {visible}")
    name = str(source)
    path = Path(source)
    _check_file(path)
    tasks: list[Task] = []
    rejected: list[RejectedRow] = []
    line_of: dict[str, int] = {}
    for line, row in _rows(path):
        try:
            task = task_from_any_row(_parse_line(row) if isinstance(row, bytes) else row, _collection(path), visible)
        except (RowError, RecursionError) as error:
            reason = str(error) if isinstance(error, RowError) else "the row is nested too deeply"
            rejected.append(RejectedRow(name, line, reason))
            continue
        if task.id in line_of:
            raise InputError(
                f"{name}: lines {line_of[task.id]} and {line} both have the id {task.id!r}",
                "Give every task an id of its own.",
            )
        line_of[task.id] = line
        tasks.append(task)
    if not tasks:
        raise _no_task(name, rejected)
    return LoadedTasks(name, tuple(tasks), tuple(rejected))


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder", "Name the task file in it, such as tasks.jsonl.")
    if not path.exists():
        raise InputError(
            f"there is no task file {path}",
            f"Give a path to a {', '.join(_SUFFIXES)} file. "
            "Data sets of a hub are not downloaded: save them to a file first.",
        )
    if not path.name.lower().endswith(_SUFFIXES):
        raise InputError(f"can't tell the format of {path}", f"The name must end with {', '.join(_SUFFIXES)}.")


def _collection(path: Path) -> str:
    return path.name.split(".", 1)[0]


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number, row) of every row; a row that is still to be parsed comes as bytes."""
    lower = path.name.lower()
    if lower.endswith(".parquet"):
        yield from enumerate(_parquet_rows(path), start=1)
        return
    data = _read(path, packed=lower.endswith(".gz"))
    if lower.removesuffix(".gz").endswith(".json") and data.lstrip()[:1] == b"[":
        yield from enumerate(_array(path, data), start=1)
        return
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _read(path: Path, *, packed: bool) -> bytes:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if packed else data).removeprefix(b"\xef\xbb\xbf")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} is not a whole gzip file: {error}") from None
    except OSError as error:
        raise InputError(f"can't read {path}: {error.strerror}") from None


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8 text: byte {data[error.start]:#04x} at position {error.start + 1}") from None


def _parse_line(line: bytes) -> Any:
    return parse_json(_decode(line).strip(), "the line")


def _array(path: Path, data: bytes) -> list[Any]:
    try:
        rows = parse_json(_decode(data), "the file")
    except RowError as error:
        raise InputError(f"{path}: {error}", "A .json file must hold one array of rows.") from None
    assert isinstance(rows, list)  # the text begins with "["
    return rows


def _parquet_rows(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(
            f"reading {path} needs pyarrow", "Install it (pip install pyarrow), or give a .jsonl file."
        ) from None
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"can't read {path} as parquet: {error}") from None
    # A table has a value in every column; one that is null says that the row doesn't have the key.
    return [{key: value for key, value in row.items() if value is not None} for row in table.to_pylist()]


def _no_task(name: str, rejected: list[RejectedRow]) -> InputError:
    if not rejected:
        return InputError(f"{name} holds no row", "Put a task on each line; docs/tasks.md shows the format.")
    first = "\n".join(f"  {row}" for row in rejected[:_MOST_REPORTED])
    return InputError(
        f"{name} holds no usable task; {_count(len(rejected), 'row')} rejected:\n{first}",
        "docs/tasks.md shows the formats that are recognised.",
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
