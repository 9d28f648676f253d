"""Which rollout files count where small ones were merged, and how a merged one is cut again.

`packed-A-B.parquet` stands for generations A to B. It is written whole and renamed before the small files that it holds
are removed, so a kill between leaves both: wherever rollouts are read, the packed file counts and small files of its
generations don't.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ascent.errors import InputError

if TYPE_CHECKING:
    import pyarrow

MOST_ROWS = 1000  # of a row group: one completion is read without the rest
_PACKED = re.compile(r"packed-(\d+)-(\d+)\.parquet")
_SMALL = re.compile(r"(\d+)-rank\d+\.parquet")


def packed_name(first: int, last: int) -> str:
    """The name of the file that stands for generations `first` to `last`."""
    return f"packed-{first:06d}-{last:06d}.parquet"


def packed_generations(name: str) -> range | None:
    """The generations that a file of this name stands for; None where it is no packed file."""
    match = _PACKED.fullmatch(name)
    return range(int(match[1]), int(match[2]) + 1) if match else None


def generations_of(name: str) -> range | None:
    """The generations in a rollout file of training, packed or not, by its name; None for any other file."""
    match = _SMALL.fullmatch(name)
    return range(int(match[1]), int(match[1]) + 1) if match else packed_generations(name)


def counting(paths: Iterable[Path]) -> list[Path]:
    """The files of generations that count, in order: those of generations that are packed are left out, and of packed
    files that overlap all but the widest."""
    files = {path: of for path in sorted(paths) if (of := generations_of(path.name)) is not None}
    packed = {path: of for path, of in files.items() if packed_generations(path.name) is not None}
    widest = {path: of for path, of in packed.items() if not any(_within(of, other) for other in packed.values())}
    small = {
        path: of
        for path, of in files.items()
        if path not in packed and not any(of.start in other for other in widest.values())
    }
    return sorted([*widest, *small], key=lambda path: (files[path].start, path.name))


def split(path: Path, generation: int, beyond: Path) -> None:
    """Cut a packed file at a generation: what is before stays beside it under a name of its own, the rest goes to the
    folder `beyond`; then the file goes. A kill leaves the whole file, and the next call does it again.

    Raises InputError where it can't be read, OSError where it can't be written.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    of = packed_generations(path.name)
    if of is None or generation not in of or generation == of.start:
        raise ValueError(f"{path.name} can't be cut at generation {generation}")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{path} holds completions on both sides of the checkpoint, and can't be read to part them: {error}",
            "Move it out of the run directory to go on without its completions.",
        ) from error
    late = pc.greater_equal(table.column("generation"), generation)
    _write(table.filter(late), beyond / packed_name(generation, of.stop - 1))
    _write(table.filter(pc.invert(late)), path.with_name(packed_name(of.start, generation - 1)))
    path.unlink()


def _write(table: pyarrow.Table, path: Path) -> None:
    import pyarrow.parquet as pq

    beside = path.with_name(f".{path.name}.tmp")
    try:
        pq.write_table(table, beside, row_group_size=MOST_ROWS, compression="zstd", use_dictionary=False)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def _within(of: range, other: range) -> bool:
    return of != other and other.start <= of.start and of.stop <= other.stop
