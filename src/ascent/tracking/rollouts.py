"""Every sampled completion, in parquet: one file for each generation (or evaluation) and rank, written by rename.

The schema is documented in docs/run-directory.md; its version stands in the file's metadata under `ascent.rollouts`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascent.errors import InputError
from ascent.tracking import attempts
from ascent.tracking.packed_files import counting
from ascent.types import Logps, TokenIds

if TYPE_CHECKING:
    import pyarrow

SCHEMA_VERSION = 3  # 2: evaluation; 3: from trainer_logps on
_VERSION_KEY = b"ascent.rollouts"


@dataclass(frozen=True, slots=True, eq=False)
class RolloutRecord:
    """One completion as it is kept. `step` is the first optimizer step that it feeds; `evaluation` names the evaluation
    that it belongs to, and then `step` counts the steps that made the weights, and `generation` those before it.
    `rewards` holds each reward function's value by name, `parts` the parts of a code reward; `outcomes` is one word a
    test, the first `visible_tests` of them of visible tests. `audit_outcomes` are those of all hidden tests, judged
    unpaid: none in it where the task has none. `weight_spans` says which weights sampled which tokens, where several
    did: (first token, optimizer steps that made the weights) of each. None: not known."""

    sample_id: str
    group_id: str
    task_id: str
    evaluation: str | None
    generation: int
    step: int
    rank: int
    index: int
    prompt: str
    completion: str
    program: str
    prompt_ids: Sequence[int]
    completion_ids: TokenIds
    logps: Logps
    finish_reason: str
    weight_version: int
    reward: float | None
    rewards: dict[str, float | None]
    parts: dict[str, float]
    advantage: float | None
    compiled: bool | None
    outcomes: Sequence[str]
    error: str | None
    sandbox_seconds: float | None
    sandbox_level: str | None
    kept: bool
    dropped_why: str | None
    sample_seconds: float
    trainer_logps: Logps | None = None
    visible_tests: int | None = None
    audit_outcomes: Sequence[str] | None = None
    markers: Sequence[str] | None = None
    signal: bool | None = None
    weight_spans: Sequence[tuple[int, int]] | None = None


def schema() -> pyarrow.Schema:
    """The parquet schema of a rollout file."""
    import pyarrow as pa

    text, number, whole = pa.string(), pa.float64(), pa.int64()
    return pa.schema(
        [
            ("sample_id", text),
            ("group_id", text),
            ("task_id", text),
            ("evaluation", text),
            ("generation", whole),
            ("step", whole),
            ("rank", whole),
            ("index", whole),
            ("prompt", text),
            ("completion", text),
            ("program", text),
            ("prompt_ids", pa.list_(pa.int32())),
            ("completion_ids", pa.list_(pa.int32())),
            ("logps", pa.list_(pa.float32())),
            ("finish_reason", text),
            ("weight_version", whole),
            ("reward", number),
            ("rewards", pa.map_(text, number)),
            ("parts", pa.map_(text, number)),
            ("advantage", number),
            ("compiled", pa.bool_()),
            ("outcomes", pa.list_(text)),
            ("error", text),
            ("sandbox_seconds", number),
            ("sandbox_level", text),
            ("kept", pa.bool_()),
            ("dropped_why", text),
            ("sample_seconds", number),
            ("trainer_logps", pa.list_(pa.float32())),
            ("visible_tests", pa.int32()),
            ("audit_outcomes", pa.list_(text)),
            ("markers", pa.list_(text)),
            ("signal", pa.bool_()),
            ("weight_spans", pa.list_(pa.struct([("start", pa.int32()), ("version", whole)]))),
        ],
        metadata={_VERSION_KEY: str(SCHEMA_VERSION)},
    )


def write_rollouts(path: Path, records: Sequence[RolloutRecord]) -> None:
    """Write one file; readers see it whole or not at all. Raises OSError where it can't be written, and
    StaleAttemptError in a process that must not write any more."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [_column(field.type, [getattr(record, field.name) for record in records]) for field in schema()]
    table = pa.Table.from_arrays(columns, schema=schema())
    beside = path.with_name(f".{path.name}.tmp")
    try:
        # zstd alone packs tokens as small as dictionaries would, in a quarter of the time
        pq.write_table(table, beside, compression="zstd", use_dictionary=False)
        attempts.fence()
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)  # on a full disk it would be in the way


def version_of(path: Path) -> int:
    """The schema version of a rollout file. Raises InputError for a file that isn't one, or of a later release."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        kept = (pq.read_schema(path).metadata or {}).get(_VERSION_KEY, b"")
        version = int(kept)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path} is not a rollout file: {error}") from error
    if version > SCHEMA_VERSION:
        raise InputError(
            f"{path} has schema version {version} of rollout files; this release knows versions up to {SCHEMA_VERSION}",
            "Read it with the release of Ascent that wrote it, or a later one.",
        )
    return version


def read_rollouts(path: Path) -> list[dict[str, Any]]:
    """The rows of one file, or of all generations of a folder, in order, without evaluations; maps become dicts. Rows
    of earlier schema versions have None in the columns that these lack. Raises what `version_of` raises."""
    import pyarrow.parquet as pq

    files = [path] if path.is_file() else counting(path.glob("*.parquet"))
    rows: list[dict[str, Any]] = []
    absent = dict.fromkeys(schema().names)
    for file in files:
        version_of(file)
        for row in pq.read_table(file).to_pylist():
            rows.append({**absent, **row, "rewards": dict(row["rewards"]), "parts": dict(row["parts"])})
    return rows


def _column(kind: pyarrow.DataType, values: Sequence[Any]) -> pyarrow.Array:
    import pyarrow as pa

    if pa.types.is_map(kind):
        return pa.array([list(value.items()) for value in values], kind)
    if pa.types.is_list(kind) and pa.types.is_primitive(kind.value_type):
        return _number_lists(kind, values)
    return pa.array(values, kind)


def _number_lists(kind: pyarrow.ListType, values: Sequence[Any]) -> pyarrow.ListArray:
    """A column of lists of numbers, from arrays, sequences or None, without an object for each number."""
    import numpy as np
    import pyarrow as pa

    dtype = np.dtype(kind.value_type.to_pandas_dtype())
    arrays = [np.asarray(() if value is None else value, dtype) for value in values]
    starts = np.cumsum([0, *map(len, arrays)])
    numbers = np.concatenate(arrays) if arrays else np.zeros(0, dtype)
    absent = pa.array([value is None for value in values], pa.bool_())
    return pa.ListArray.from_arrays(
        pa.array(starts, pa.int32()), pa.array(numbers, kind.value_type), type=kind, mask=absent
    )
