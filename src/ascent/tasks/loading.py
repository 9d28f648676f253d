"""From the name of a source (`builtin`, `builtin:FAMILY`, a file) to tasks; unusable rows are reported."""

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
from ascent.tasks.split import check_held_out, place, split_tasks
from ascent.types import Task

BUILTIN, INSTRUCT = "builtin", "instruct"
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


def load_tasks(source: str | Path, *, visible: int = 1, seed: int = 0, strict: bool = False) -> LoadedTasks:
    """The tasks of a source.

    Args:
        source: `builtin`, `builtin:FAMILY`, `builtin:instruct`, or the path of a .jsonl, .json (one array) or
            .parquet file (parquet needs pyarrow; the others may be gzipped). The format of each row is
            recognised by its keys.
        visible: how many tests of a row the prompt may show, for formats that don't say it themselves (MBPP,
            APPS).
        seed: seed of the built-in tasks' test inputs; files don't use it.
        strict: compare floats exactly in those public formats whose own checker does; see docs/tasks.md.

    Raises:
        InputError: no such source, an unreadable file, two tasks with the same id, or no usable row at all.
    """
    if visible < 0:
        raise InputError(f"visible must be at least 0, not {visible}")
    name = str(source)
    if is_builtin(name):
        return _builtin(name, seed)
    path = Path(source)
    _check_file(path)
    tasks: list[Task] = []
    rejected: list[RejectedRow] = []
    line_of: dict[str, int] = {}
    for line, row in _rows(path):
        try:
            parsed = _parse_line(row) if isinstance(row, bytes) else row
            task = task_from_any_row(parsed, _collection(path), visible, strict=strict)
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


def load_split(
    source: str | Path, held_out: float, seed: int, *, visible: int = 1, strict: bool = False
) -> tuple[LoadedTasks, tuple[Task, ...], tuple[Task, ...]]:
    """(loaded, train, held-out): a source's tasks, split as fits it.

    Files, and `builtin:instruct`, are split by `split_tasks`. The other built-in tasks are split by
    `held_out_builtin` (a share up to 0.5) or `held_out_count` (a number), whose held-out half has combinations of
    parameters that the training half doesn't have.

    Raises:
        InputError: as `load_tasks` and `split_tasks`.
    """
    loaded = load_tasks(source, visible=visible, seed=seed, strict=strict)
    name = str(source)
    if not is_builtin(name) or name == f"{BUILTIN}:{INSTRUCT}" or held_out == 0:
        return loaded, *split_tasks(loaded.tasks, held_out, seed)
    from ascent.tasks.builtin import builtin_tasks, held_out_builtin, held_out_count

    left_out: frozenset[str] = frozenset()
    if isinstance(held_out, int):
        check_held_out(held_out)
        ids = {task.id for task in loaded.tasks}
        own = [builtin for builtin in builtin_tasks(seed) if builtin.task.id in ids]
        unseen, left_out = held_out_count(own, seed, held_out)
    else:
        unseen = frozenset(builtin.task.id for builtin in held_out_builtin(seed, held_out)[1])
    train = tuple(task for task in loaded.tasks if task.id not in unseen | left_out)
    return loaded, train, tuple(task for task in loaded.tasks if task.id in unseen)


def check_sources(train: str, held_out: float | int | str, seed: int) -> None:
    """Refuse at once what `load_split` would refuse whatever the files hold.

    Raises:
        InputError: no such source, or a share or number of held-out tasks that can't be.
    """
    for source in (train, held_out) if isinstance(held_out, str) else (train,):
        if not is_builtin(source):
            _check_file(Path(source))
        elif isinstance(held_out, str) or source == f"{BUILTIN}:{INSTRUCT}":
            load_tasks(source, seed=seed)
    if isinstance(held_out, str):
        return
    check_held_out(held_out)
    if is_builtin(train):
        load_split(train, held_out, seed)


def is_builtin(source: str | Path) -> bool:
    """Whether a source's name means built-in tasks."""
    return str(source) == BUILTIN or str(source).startswith(f"{BUILTIN}:")


def _builtin(name: str, seed: int) -> LoadedTasks:
    from ascent.tasks.builtin import FAMILIES, builtin_tasks, instruct_tasks

    family = name.partition(":")[2]
    if family == INSTRUCT:
        return LoadedTasks(name, tuple(builtin.task for builtin in instruct_tasks()))
    if name != BUILTIN and family not in FAMILIES:
        raise InputError(
            f"there is no built-in family {family!r}", f"Built-in are: {', '.join((*FAMILIES, INSTRUCT))}."
        )
    tasks = [builtin.task for builtin in builtin_tasks(seed) if family in ("", builtin.task.family)]
    # Mixed, so that a run limited to the first few tasks has some of every family and template.
    return LoadedTasks(name, tuple(sorted(tasks, key=lambda task: place(task.id, 0))))


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder", "Name the task file in it, such as tasks.jsonl.")
    if not path.exists():
        raise InputError(
            f"there is no task file {path}",
            f"Give a path to a {', '.join(_SUFFIXES)} file, or builtin. "
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
