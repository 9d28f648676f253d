"""Which format a data row has, by its keys, and the task it describes."""

from __future__ import annotations

import hashlib
from typing import Any

from ascent.tasks.humaneval import is_humaneval_row, task_from_humaneval
from ascent.tasks.inputs_outputs import is_inputs_outputs_row, task_from_inputs_outputs
from ascent.tasks.jsonl import is_own_row, task_from_row
from ascent.tasks.leetcode import is_leetcode_row, task_from_leetcode
from ascent.tasks.mbpp import is_mbpp_row, task_from_mbpp
from ascent.tasks.rows import Row, RowError, kind_of
from ascent.types import Task

_ID_KEYS = ("id", "task_id", "question_id", "problem_id")
_EXPECTED = (
    "'prompt' with 'visible_tests' or 'hidden_tests' (own format); 'prompt', 'test' and 'entry_point' "
    "(HumanEval, LeetCodeDataset); 'test_list' (MBPP); 'input_output' (APPS); 'public_test_cases' (LiveCodeBench); "
    "'inputs' and 'outputs' (plain rows)"
)


def task_from_any_row(row: Any, collection: str, visible: int, *, strict: bool = False) -> Task:
    """The task of a row in any known format.

    `collection` begins the ids of rows whose own id is a bare number or absent (such a row is named by a hash
    of its content, so that its id doesn't depend on its place in the file). `visible` is how many tests may
    be shown for formats that don't say it themselves. With `strict`, floats are compared exactly in those
    formats whose own checker does (LiveCodeBench, LeetCodeDataset, function calls of APPS and TACO).

    Raises:
        RowError: the row's format is unknown, or the row is unusable.
    """
    if not isinstance(row, dict):
        raise RowError(f"a row must be an object, not {kind_of(row)}")
    if is_own_row(row):
        return task_from_row(row)
    if is_leetcode_row(row):
        return task_from_leetcode(row, _task_id(row, collection), visible, strict=strict)
    if is_humaneval_row(row):
        return task_from_humaneval(row, _task_id(row, collection))
    if is_mbpp_row(row):
        return task_from_mbpp(row, _task_id(row, collection), visible)
    if is_inputs_outputs_row(row):
        return task_from_inputs_outputs(row, _task_id(row, collection), visible, strict=strict)
    keys = ", ".join(map(repr, list(row)[:12])) or "none"
    raise RowError(f"unknown format with the keys {keys}; expected {_EXPECTED}")


def _task_id(row: Row, collection: str) -> str:
    for key in _ID_KEYS:
        value = row.get(key)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return f"{collection}/{value}"
    content = repr(sorted(row.items(), key=lambda item: item[0]))
    return f"{collection}/{hashlib.sha256(content.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
