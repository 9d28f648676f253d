"""Rows of inputs with the outputs they must give: programs that read standard input, and functions.

- APPS (https://arxiv.org/abs/2105.09938) and TACO: `input_output`, an object or its JSON text, with `inputs`,
  `outputs` and, for functions, `fn_name`.
- LiveCodeBench (https://arxiv.org/abs/2403.07974): `public_test_cases` and `private_test_cases`, lists of
  objects with `input`, `output`, `testtype`, or their JSON text; a function's name is `func_name` in
  `metadata`.
- Plain rows: `inputs`, `outputs` and, for functions, `fn_name`.

Without a function's name each input is text for standard input (a list of strings stands for its lines). With
one, each input is the list of arguments (LiveCodeBench: one JSON value a line); where `starter_code` declares
`class Solution`, the function is a method of it. When every output of such a row is a list of one element,
the element is what the function returns (APPS wraps results so, but not in all rows), and the list is right too.

Values are those of JSON, so results are compared as JSON can tell them apart (`FunctionTest.as_json`), and programs get
the names that the format's own harness gives them (`preludes`).
"""

from __future__ import annotations

import re
from typing import Any

from ascent.sandbox.types import FunctionTest, StdioTest, Test
from ascent.tasks.preludes import APPS, LIVECODEBENCH, unknown_names
from ascent.tasks.rows import (
    Row,
    RowError,
    first_text,
    kind_of,
    list_field,
    optional_text_field,
    parse_json,
    text_field,
)
from ascent.types import Task

_STATEMENT_KEYS = ("question", "question_content", "description", "problem", "prompt", "text")
_EXACT = 0.0  # the tolerance of a checker that has none
_METHOD = re.compile(r"^class\s+Solution\b", re.MULTILINE)


def is_inputs_outputs_row(row: Row) -> bool:
    """Whether the row has the keys of one of this file's formats."""
    return "input_output" in row or "public_test_cases" in row or ("inputs" in row and "outputs" in row)


def task_from_inputs_outputs(row: Row, task_id: str, visible: int, *, strict: bool) -> Task:
    """The task of such a row. LiveCodeBench says which tests are public; elsewhere the first `visible` are
    shown, but at least one test stays hidden. With `strict`, floats are compared exactly where the format's own
    checker does.

    Raises:
        RowError: a field is missing or of the wrong type, inputs and outputs don't match, or there is no
            test.
    """
    starter = optional_text_field(row, "starter_code") or ""
    tolerance = _EXACT if strict else None
    if "public_test_cases" in row:
        name, prelude = _metadata_name(row), LIVECODEBENCH
        function = None if name is None else _dotted(name, starter)
        shown = _livecodebench_tests(row, "public_test_cases", function, tolerance)
        hidden = _livecodebench_tests(row, "private_test_cases", function, tolerance)
    else:
        prelude = APPS
        source = _json_field(row, "input_output") if "input_output" in row else row
        name = optional_text_field(source, "fn_name") or optional_text_field(row, "fn_name")
        function = None if name is None else _dotted(name, starter)
        tests = _paired_tests(source, function, tolerance)
        count = min(visible, len(tests) - 1)
        shown, hidden = tests[:count], tests[count:]
    if not shown and not hidden:
        raise RowError("the row has no test")
    if unknown := unknown_names(starter, prelude):
        raise RowError(
            f"'starter_code' names {', '.join(unknown)}, which neither it nor its harness defines: "
            "no program that begins with it can run"
        )
    difficulty = row.get("difficulty")
    return Task(
        id=task_id,
        prompt=_statement(row, name, starter),
        visible_tests=tuple(shown),
        hidden_tests=tuple(hidden),
        entry_point=name,
        family=difficulty if isinstance(difficulty, str) else "",
        prelude=prelude,
        reference=_first_solution(row),
    )


def _json_field(row: Row, key: str) -> Row:
    value = row[key]
    if isinstance(value, str):
        if not value.strip():
            raise RowError(f"{key!r} is empty: the row has no test")
        value = parse_json(value, repr(key))
    if not isinstance(value, dict):
        raise RowError(f"{key!r} must be an object or its JSON text, not {kind_of(value)}")
    return value


def _dotted(name: str, starter: str) -> str:
    if not name.isidentifier():
        raise RowError(f"the function's name must be an identifier, not {name!r}")
    return f"Solution.{name}" if _METHOD.search(starter) else name


def _paired_tests(source: Row, function: str | None, tolerance: float | None) -> list[Test]:
    inputs, outputs = list_field(source, "inputs"), list_field(source, "outputs")
    if len(inputs) != len(outputs):
        raise RowError(f"{len(inputs)} 'inputs' but {len(outputs)} 'outputs'")
    if function is None:
        return [
            StdioTest(stdin=_stream(given, f"inputs[{index}]"), stdout=_stream(wanted, f"outputs[{index}]"))
            for index, (given, wanted) in enumerate(zip(inputs, outputs, strict=True))
        ]
    for index, given in enumerate(inputs):
        if not isinstance(given, list):
            raise RowError(f"inputs[{index}] must be the list of {function}'s arguments, not {kind_of(given)}")
    wrapped = all(isinstance(wanted, list) and len(wanted) == 1 for wanted in outputs)
    if wrapped:
        outputs = [wanted[0] for wanted in outputs]
    return [
        FunctionTest(function, _arguments(given), wanted, tolerance=tolerance, as_json=True, or_in_list=wrapped)
        for given, wanted in zip(inputs, outputs, strict=True)
    ]


def _arguments(given: list[Any]) -> tuple[Any, ...]:
    """As APPS' own harness does: a first argument whose keys are all written integers has integers for keys, which
    JSON couldn't say."""
    if given and isinstance(given[0], dict) and given[0]:
        try:
            return ({int(key): value for key, value in given[0].items()}, *given[1:])
        except ValueError:
            pass
    return tuple(given)


def _stream(value: Any, where: str) -> str:
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value) + "\n"
    if not isinstance(value, str):
        raise RowError(
            f"{where} must be text for a program without function name, not {kind_of(value)} "
            "(a function's row needs 'fn_name')"
        )
    return value


def _livecodebench_tests(row: Row, key: str, function: str | None, tolerance: float | None) -> list[Test]:
    cases = row.get(key, [])
    if isinstance(cases, str):
        if cases.strip() and not cases.lstrip().startswith("["):
            raise RowError(
                f"{key!r} is not a JSON list. The public data set packs private tests as a pickle, which "
                "is never loaded here, as it can run code; convert the field to JSON in a place you trust"
            )
        cases = parse_json(cases, repr(key)) if cases.strip() else []
    if not isinstance(cases, list):
        raise RowError(f"{key!r} must be a list or its JSON text, not {kind_of(cases)}")
    return [_livecodebench_test(case, f"{key}[{index}]", function, tolerance) for index, case in enumerate(cases)]


def _livecodebench_test(case: Any, where: str, function: str | None, tolerance: float | None) -> Test:
    if not isinstance(case, dict):
        raise RowError(f"{where} must be an object with 'input' and 'output', not {kind_of(case)}")
    try:
        given, wanted = text_field(case, "input"), text_field(case, "output")
        if case.get("testtype", "stdin") != "functional":
            return StdioTest(given, wanted, tolerance)
        if function is None:
            raise RowError("a functional test, but 'metadata' holds no 'func_name'")
        lines = [line for line in given.split("\n") if line.strip()]
        arguments = tuple(parse_json(line, "a line of 'input'") for line in lines)
        return FunctionTest(function, arguments, parse_json(wanted, "'output'"), tolerance=tolerance, as_json=True)
    except RowError as error:
        raise RowError(f"{where}: {error}") from None


def _metadata_name(row: Row) -> str | None:
    metadata = row.get("metadata")
    if metadata is None or metadata == "":
        return optional_text_field(row, "fn_name")
    return optional_text_field(_json_field(row, "metadata"), "func_name")


def _statement(row: Row, name: str | None, starter: str) -> str:
    statement = first_text(row, _STATEMENT_KEYS).strip()
    if starter.strip():
        return f"{statement}\n\nBegin with this code:\n\n```python\n{starter.strip()}\n```"
    if name is None:
        return f"{statement}\n\nRead from standard input and print to standard output."
    return statement


def _first_solution(row: Row) -> str | None:
    solutions = row.get("solutions")
    if isinstance(solutions, str) and solutions.strip():
        solutions = parse_json(solutions, "'solutions'")
    if isinstance(solutions, list) and solutions and isinstance(solutions[0], str):
        return solutions[0]
    return None
