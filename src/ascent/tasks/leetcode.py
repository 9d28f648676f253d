"""LeetCodeDataset rows (Xia et al., 2025, https://arxiv.org/abs/2504.14655): HumanEval's keys, but the entry point is
`Solution().method`, and `prompt` holds nothing but imports and helpers: it is the task's prelude.

The statement is `problem_description` with `starter_code`; else `query`, at the top or in `meta`. The asserts of
`check` become one test each; the first of those that call and compare are visible. Linked lists and trees are built by
helpers of the prelude; such objects can't be handed to a program in another process: rows that need them are refused.
"""

from __future__ import annotations

import ast
import re

from ascent.sandbox.asserts import decompose
from ascent.sandbox.types import AssertTest, FunctionTest, Test
from ascent.tasks.humaneval import is_humaneval_row, tests_of_check
from ascent.tasks.preludes import BUILTINS_AGAIN
from ascent.tasks.rows import Row, RowError, first_text, optional_text_field, parse_python, text_field
from ascent.types import Task

_ENTRY_POINT = re.compile(r"Solution\(\)\.([A-Za-z_]\w*)")
_CALLED = "candidate"  # stands for the method while the asserts are taken apart


def is_leetcode_row(row: Row) -> bool:
    """Whether the row has HumanEval's keys, and a method of `Solution` for its entry point."""
    name = row.get("entry_point")
    return is_humaneval_row(row) and isinstance(name, str) and _ENTRY_POINT.fullmatch(name.strip()) is not None


def task_from_leetcode(row: Row, task_id: str, visible: int, *, strict: bool) -> Task:
    """The task of such a row with the first `visible` tests shown (at least one stays hidden).

    Raises:
        RowError: a field is missing or of the wrong type, or the tests need objects of the prelude's own classes.
    """
    match = _ENTRY_POINT.fullmatch(text_field(row, "entry_point").strip())
    assert match is not None  # `is_leetcode_row`
    method, prelude = match[1], text_field(row, "prompt")
    helpers = _defined(prelude)
    asserts = tests_of_check(text_field(row, "test", nonempty=True), _CALLED)
    used = sorted({name for test in asserts for name in _names(test.code)} & helpers)
    if used:
        raise RowError(f"its tests build linked lists or trees with {', '.join(used)}, which no program can be handed")
    prelude = f"{prelude.rstrip()}\n{BUILTINS_AGAIN}\n"
    tests = [_test(test, method, prelude, strict=strict) for test in asserts]
    calls = [test for test in tests if isinstance(test, FunctionTest)]
    shown = calls[: min(visible, len(tests) - 1)]
    difficulty = row.get("difficulty") or _meta(row).get("difficulty")
    return Task(
        id=task_id,
        prompt=_statement(row),
        visible_tests=tuple(shown),
        hidden_tests=tuple(test for test in tests if not any(test is other for other in shown)),
        entry_point=method,
        family=difficulty if isinstance(difficulty, str) else "",
        prelude=prelude,
        reference=optional_text_field(row, "completion"),
    )


def _test(test: AssertTest, method: str, prelude: str, *, strict: bool) -> Test:
    """A call with the value that it must return, where the assert is that much; else the assert, which may use the
    prelude's names (`inf`)."""
    first, _, rest = test.code.partition("\n")
    calls = decompose(rest if first.endswith(f" = {_CALLED}") else test.code)
    if calls is not None and len(calls) == 1 and calls[0].check["mode"] == "equal":
        call, tolerance = calls[0], 0.0 if strict else None
        expected = call.check["expected"]
        return FunctionTest(f"Solution.{method}", call.args, expected, call.kwargs, tolerance, as_json=True)
    return AssertTest(code=f"{_CALLED} = Solution().{method}\n{test.code}", setup=prelude + test.setup)


def _defined(code: str) -> set[str]:
    body = parse_python(code, "'prompt'").body
    return {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


def _names(code: str) -> set[str]:
    return {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}


def _meta(row: Row) -> Row:
    meta = row.get("meta")
    return meta if isinstance(meta, dict) else {}


def _statement(row: Row) -> str:
    starter = optional_text_field(row, "starter_code") or ""
    if starter.strip() and optional_text_field(row, "problem_description"):
        statement = text_field(row, "problem_description").strip()
        return f"{statement}\n\nBegin with this code:\n\n```python\n{starter.strip()}\n```"
    return first_text(row if row.get("query") else _meta(row), ("query",)).strip()
