"""What the index knows of each completion: the scalars of its row, and counts made from its lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_TEXT, _WHOLE, _NUMBER = pa.string(), pa.int32(), pa.float64()
# What is read, and the kinds that it must be of (or can be made).
_KINDS = {
    "sample_id": _TEXT,
    "group_id": _TEXT,
    "task_id": _TEXT,
    "evaluation": _TEXT,
    "generation": _WHOLE,
    "step": _WHOLE,
    "rank": _WHOLE,
    "index": _WHOLE,
    "reward": _NUMBER,
    "advantage": _NUMBER,
    "compiled": pa.bool_(),
    "finish_reason": _TEXT,
    "weight_version": _WHOLE,
    "kept": pa.bool_(),
    "sample_seconds": _NUMBER,
    "visible_tests": _WHOLE,
    "completion_ids": pa.list_(_WHOLE),
    "outcomes": pa.list_(_TEXT),
    "audit_outcomes": pa.list_(_TEXT),
    "markers": pa.list_(_TEXT),
}
_COUNTED = ("visible_tests", "completion_ids", "outcomes", "audit_outcomes", "markers")  # the others go in as they are
READ = tuple(_KINDS)

# `tests` and `passed` count what the reward ran. `visible_*` and `hidden_*` are null where the run doesn't tell them
# apart or nobody ran them. `solved`: every known outcome is passed. `outcome`: the first that is not passed, or passed.
TABLE = """
CREATE TABLE completions (
    file INTEGER, row INTEGER,
    sample_id VARCHAR, group_id VARCHAR, task_id VARCHAR, evaluation VARCHAR,
    generation INTEGER, step INTEGER, rank INTEGER, place INTEGER,
    reward DOUBLE, advantage FLOAT, compiled BOOLEAN, finish_reason VARCHAR, weight_version INTEGER, kept BOOLEAN,
    sample_seconds FLOAT,
    tests SMALLINT, passed SMALLINT, visible_tests SMALLINT, visible_passed SMALLINT,
    hidden_tests SMALLINT, hidden_passed SMALLINT,
    solved BOOLEAN, hollow BOOLEAN, outcome VARCHAR, markers VARCHAR, tokens INTEGER
)
"""


def index_rows(batch: pa.Table, file: int, first: int) -> pa.Table:
    """The index's rows of a piece of a rollout file that begins at row `first`. Columns that the file lacks are null.

    Raises pyarrow.ArrowException for columns of other kinds than the schema's.
    """
    rows = len(batch)
    batch = pa.table({name: batch.column(name).cast(_KINDS[name]) for name in batch.column_names})
    columns: dict[str, Any] = {"file": np.full(rows, file, np.int32)}
    columns["row"] = np.arange(first, first + rows, dtype=np.int32)
    for name in (each for each in READ if each not in _COUNTED):
        renamed = "place" if name == "index" else name  # a word of SQL
        columns[renamed] = batch.column(name) if name in batch.column_names else pa.nulls(rows)
    columns |= _judged(batch)
    columns["markers"] = _joined(_list(batch, "markers"), rows)
    columns["tokens"] = _lengths(_list(batch, "completion_ids"), rows)
    return pa.table(columns)


def _judged(batch: pa.Table) -> dict[str, pa.Array]:
    """Counts of outcomes, visible and hidden."""
    rows = len(batch)
    outcomes, audits = _list(batch, "outcomes"), _list(batch, "audit_outcomes")
    starts, ends, passed_before, values = _passed(outcomes, rows)
    tests, passed = ends - starts, passed_before[ends] - passed_before[starts]
    known = np.zeros(rows, bool)
    visible = np.zeros(rows, np.int64)
    if "visible_tests" in batch.column_names:
        column = batch.column("visible_tests").combine_chunks()
        known = pc.is_valid(column).to_numpy(zero_copy_only=False)
        visible = np.minimum(pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64), tests)
    visible_passed = passed_before[starts + visible] - passed_before[starts]
    hidden, hidden_passed = tests - visible, passed - visible_passed
    audit_starts, audit_ends, audit_before, audit_values = _passed(audits, rows)
    audited = audit_ends > audit_starts
    hidden = np.where(audited, audit_ends - audit_starts, hidden)
    hidden_passed = np.where(audited, audit_before[audit_ends] - audit_before[audit_starts], hidden_passed)
    all_visible = known & (visible > 0) & (visible_passed == visible)
    judged = tests > 0
    first = _first_failure(values, starts, ends)
    of_audit = _first_failure(audit_values, audit_starts, audit_ends)
    first = np.where((first == "passed") & audited, of_audit, first)
    return {
        "tests": _masked(tests, judged),
        "passed": _masked(passed, judged),
        "visible_tests": _masked(visible, judged & known),
        "visible_passed": _masked(visible_passed, judged & known),
        "hidden_tests": _masked(hidden, known & (hidden > 0)),
        "hidden_passed": _masked(hidden_passed, known & (hidden > 0)),
        "solved": pa.array((passed == tests) & (~audited | (hidden_passed == hidden)), mask=~judged),
        "hollow": pa.array(all_visible & (2 * hidden_passed < hidden), mask=~(all_visible & (hidden > 0))),
        "outcome": pa.array(first, pa.string(), mask=~judged),
    }


def _list(batch: pa.Table, name: str) -> pa.ListArray | None:
    if name not in batch.column_names:
        return None
    column = batch.column(name)
    whole = column.combine_chunks()
    return None if pa.types.is_null(whole.type) else whole


def _passed(
    lists: pa.ListArray | None, rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[Any]]:
    """Where each row's outcomes start and end, how many of those before a place are passed, and the outcomes."""
    if lists is None or not len(lists):
        nowhere = np.zeros(rows, np.int64)
        return nowhere, nowhere, np.zeros(1, np.int64), np.zeros(0, object)
    offsets = lists.offsets.to_numpy().astype(np.int64)
    values = lists.values.to_numpy(zero_copy_only=False)
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(values == "passed", dtype=np.int64)])
    return offsets[:-1], offsets[1:], before, values


def _first_failure(values: NDArray[Any], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[Any]:
    """The first outcome of each row that is not passed; passed where all are."""
    failures = np.flatnonzero(values != "passed")
    found = np.full(len(starts), "passed", object)
    if len(failures):
        next_one = np.searchsorted(failures, starts)
        place = failures[np.minimum(next_one, len(failures) - 1)]
        inside = (next_one < len(failures)) & (place < ends)
        found[inside] = values[place[inside]]
    return found


def _masked(values: NDArray[np.int64], where: NDArray[np.bool_]) -> pa.Array:
    return pa.array(values.astype(np.int16), mask=~where)


def _lengths(lists: pa.ListArray | None, rows: int) -> pa.Array:
    return pa.nulls(rows, pa.int32()) if lists is None else pc.list_value_length(lists)


def _joined(lists: pa.ListArray | None, rows: int) -> pa.Array:
    """The names with a space around each, so that one is found whole; null where nobody looked."""
    if lists is None:
        return pa.nulls(rows, pa.string())
    joined = [None if names is None else " ".join(["", *names, ""]) for names in lists.to_pylist()]
    return pa.array(joined, pa.string())
