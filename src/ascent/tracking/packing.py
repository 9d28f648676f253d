"""Small rollout files merged into one: a file costs half a millisecond to open, and a long run has thousands.

Only generations before the last checkpoint are packed. A resume goes on from there, so what it puts away (`discarded/`)
are small files; where only an older checkpoint is left, the packed file is cut in two (`packed_files.split`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ascent.errors import InputError
from ascent.tracking import run_directory
from ascent.tracking.beginning import locked
from ascent.tracking.packed_files import MOST_ROWS, counting, generations_of, packed_name

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, slots=True)
class Packed:
    """What was merged: `files` small ones into `path`, which is None where there was nothing to merge."""

    path: Path | None
    files: int
    completions: int

    def to_text(self) -> str:
        """A line for people."""
        if self.path is None:
            return "nothing to pack: no small rollout file of a generation before the last checkpoint"
        return f"{self.files} files with {self.completions} completions are now {self.path}"


def pack(path: Path) -> Packed:
    """Merge the small files of the run at `path`, generations before its last checkpoint only.

    Raises InputError when it is no run, it trains at this moment, or a file can't be read or written.
    """
    run = run_directory.open_existing(path)
    with locked(run.path) as ours:
        if not ours:
            raise InputError(
                f"{path}: a training is at work in it, or the folder can't be locked", "Pack it when it has ended."
            )
        checkpoint = run.last_checkpoint()
        end = 0 if checkpoint is None else run_directory.read_state(checkpoint).generation
        files = _to_pack(run.rollouts, end)
        if len(files) < 2:
            return Packed(None, 0, 0)
        target = run.rollouts / packed_name(_generations(files[0]).start, max(_generations(f).stop for f in files) - 1)
        rows = _merge(files, target)
        for each in files:
            if each != target:
                each.unlink(missing_ok=True)
        _remove_leftovers(run.rollouts)
        return Packed(target, len(files), rows)


def _to_pack(folder: Path, end: int) -> list[Path]:
    """Everything that counts before generation `end`, former packed files included."""
    return [path for path in counting(folder.glob("*.parquet")) if _generations(path).stop <= end]


def _generations(path: Path) -> range:
    of = generations_of(path.name)
    assert of is not None  # `counting` gives no others
    return of


def _merge(files: Sequence[Path], target: Path) -> int:
    """Write all rows of the files as one, a file at a time. Returns how many rows there are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    beside = target.with_name(f".{target.name}.tmp")
    rows = 0
    try:
        schema = pa.unify_schemas([pq.read_schema(file) for file in files])
        versions = [int((pq.read_schema(file).metadata or {}).get(b"ascent.rollouts", b"")) for file in files]
        schema = schema.with_metadata({b"ascent.rollouts": str(max(versions)).encode()})
        waiting: list[pyarrow.Table] = []
        with pq.ParquetWriter(beside, schema, compression="zstd", use_dictionary=False) as writer:
            for file in files:
                for batch in pq.ParquetFile(file).iter_batches(MOST_ROWS):
                    waiting.append(_with_all_columns(pa.table(batch), schema))
                    rows += len(batch)
                    waiting = _write_whole_groups(writer, waiting)
            if waiting:
                writer.write_table(pa.concat_tables(waiting), MOST_ROWS)
        os.replace(beside, target)
    except (OSError, ValueError, TypeError) as error:  # pyarrow's errors are among these
        raise InputError(
            f"rollouts can't be packed into {target}: {error}",
            "Nothing was removed. A file that can't be read is named by `ascent report`.",
        ) from error
    finally:
        beside.unlink(missing_ok=True)
    return rows


def _write_whole_groups(writer: pyarrow.parquet.ParquetWriter, waiting: list[pyarrow.Table]) -> list[pyarrow.Table]:
    """Write as many full row groups as there are; returns the rest."""
    import pyarrow as pa

    if sum(map(len, waiting)) < MOST_ROWS:
        return waiting
    table = pa.concat_tables(waiting)
    full = len(table) // MOST_ROWS * MOST_ROWS
    writer.write_table(table.slice(0, full), MOST_ROWS)
    rest = table.slice(full)
    return [rest] if len(rest) else []


def _with_all_columns(table: pyarrow.Table, schema: pyarrow.Schema) -> pyarrow.Table:
    """The table with the columns of a newer schema that it lacks, null."""
    import pyarrow as pa

    columns = [
        table.column(field.name) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _remove_leftovers(folder: Path) -> None:
    """What a kill left of an earlier packing: files whose generations are in a packed one."""
    there = [path for path in folder.glob("*.parquet") if not path.name.startswith("eval-")]
    for path in set(there) - set(counting(there)):
        path.unlink(missing_ok=True)
