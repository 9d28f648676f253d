"""MBPP rows (Austin et al., 2021, https://arxiv.org/abs/2108.07732), both spellings.

| | full set | sanitized set |
|---|---|---|
| statement | `text` | `prompt` |
| setup of the tests | `test_setup_code`, one string | `test_imports`, a list of lines |
| tests | `test_list`, `challenge_test_list` | `test_list` |

The first `visible` asserts of `test_list` are visible: the prompt shows them, as the statement alone names
neither the function nor its arguments. The rest and the challenge tests are hidden; at least one test always
is, so that no program passes by repeating what it was shown.
"""

from __future__ import annotations

import ast
import builtins

from ascent.sandbox.types import AssertTest
from ascent.tasks.rows import Row, RowError, first_text, optional_text_field, parse_python, text_list_field
from ascent.types import Task

_BUILTIN_NAMES = frozenset(dir(builtins))


def is_mbpp_row(row: Row) -> bool:
    """Whether the row has MBPP's key for its tests."""
    return "test_list" in row


def task_from_mbpp(row: Row, task_id: str, visible: int) -> Task:
    """The task of an MBPP row with the first `visible` tests shown; `reference` is its `code`.

    Raises:
        RowError: a field is missing or of the wrong type, there is no test, or a test is no Python.
    """
    setup_lines = [optional_text_field(row, "test_setup_code") or "", *text_list_field(row, "test_imports")]
    setup = _unix("\n".join(line for line in setup_lines if line.strip()))
    codes = text_list_field(row, "test_list")
    challenges = text_list_field(row, "challenge_test_list")
    tests = [AssertTest(code=_unix(code).strip(), setup=setup) for code in codes + challenges if code.strip()]
    if not tests:
        raise RowError("'test_list' is empty")
    reference = optional_text_field(row, "code")
    reference = None if reference is None else _unix(reference)
    shown = min(visible, len(tests) - 1, len(codes))
    return Task(
        id=task_id,
        prompt=_unix(first_text(row, ("text", "prompt"))).strip(),
        visible_tests=tuple(tests[:shown]),
        hidden_tests=tuple(tests[shown:]),
        entry_point=_tested_function([test.code for test in tests], reference),
        family="mbpp",
        prelude=_imports(setup),
        reference=reference,
    )


def _imports(setup: str) -> str:
    """The imports of the tests' setup: in MBPP's own harness programs and tests share their names."""
    body = parse_python(setup, "the tests' setup").body
    return "".join(f"{ast.unparse(node)}\n" for node in body if isinstance(node, (ast.Import, ast.ImportFrom)))


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _tested_function(codes: list[str], reference: str | None) -> str | None:
    """The function that the tests call: one that the reference defines, else the first that is no builtin."""
    called = [name for code in codes for name in _called_names(code)]
    defined = _defined_functions(reference)
    for name in called:
        if name in defined:
            return name
    return next((name for name in called if name not in _BUILTIN_NAMES), None)


def _called_names(code: str) -> list[str]:
    calls = [node for node in ast.walk(parse_python(code, "a test")) if isinstance(node, ast.Call)]
    return [call.func.id for call in calls if isinstance(call.func, ast.Name)]


def _defined_functions(reference: str | None) -> set[str]:
    if reference is None:
        return set()
    body = parse_python(reference, "'code'").body
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}
