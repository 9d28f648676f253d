"""HumanEval rows (Chen et al., 2021, https://arxiv.org/abs/2107.03374): `prompt`, `test`, `entry_point`, and
usually `task_id` and `canonical_solution`. Other sets with the same keys are read the same way.

The prompt is the head of the program, so it is also the task's `prefix`. No test is visible: the examples
stand in the docstring. A `check(candidate)` that holds nothing but asserts becomes one test an assert, so
that a program which is right in part can be told from one that is wrong throughout; any other `check` stays
one test.
"""

from __future__ import annotations

import ast

from ascent.sandbox.types import AssertTest
from ascent.tasks.rows import Row, RowError, optional_text_field, parse_python, text_field
from ascent.types import Task


def is_humaneval_row(row: Row) -> bool:
    """Whether the row has HumanEval's keys."""
    return all(key in row for key in ("prompt", "test", "entry_point"))


def task_from_humaneval(row: Row, task_id: str) -> Task:
    """The task of a HumanEval row; `reference` is the prompt with its canonical solution.

    Raises:
        RowError: a field is missing or of the wrong type, or `test` is no Python or defines no `check`.
    """
    prompt = text_field(row, "prompt", nonempty=True)
    solution = optional_text_field(row, "canonical_solution")
    entry_point = text_field(row, "entry_point", nonempty=True)
    if not entry_point.isidentifier():
        raise RowError(f"'entry_point' must be the name of a function, not {entry_point!r}")
    # Without its last newline: the completion brings its own, as the tokens of "\n    " belong together.
    head = prompt.rstrip()
    return Task(
        id=task_id,
        prompt=head,
        visible_tests=(),
        hidden_tests=tests_of_check(text_field(row, "test", nonempty=True), entry_point),
        entry_point=entry_point,
        family="humaneval",
        prefix=head,
        reference=None if solution is None else prompt + solution,
    )


def tests_of_check(code: str, entry_point: str) -> tuple[AssertTest, ...]:
    """The tests of a `check(candidate)` for `entry_point`: one an assert, where it holds nothing else.

    Raises:
        RowError: the code is no Python or defines no `check`.
    """
    module = parse_python(code, "'test'")
    checks = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    if not checks:
        raise RowError("'test' does not define check(candidate)")
    asserts = _plain_asserts(checks[-1])
    if not asserts:
        return (AssertTest(code=f"{code.strip()}\n\ncheck({entry_point})"),)
    argument = checks[-1].args.args[0].arg
    setup = "\n".join(ast.unparse(node) for node in module.body if not _is_noise(node) and node not in checks)
    return tuple(AssertTest(code=f"{argument} = {entry_point}\n{ast.unparse(node)}", setup=setup) for node in asserts)


def _plain_asserts(check: ast.FunctionDef) -> list[ast.Assert]:
    """The asserts of `check`, or nothing when it does more than assert about its one argument."""
    arguments = check.args
    if len(arguments.args) != 1 or arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        return []
    statements = [node for node in check.body if not _is_noise(node)]
    asserts = [node for node in statements if isinstance(node, ast.Assert)]
    binds = any(isinstance(node, ast.NamedExpr) for node in ast.walk(check))
    if len(asserts) != len(statements) or binds:
        return []
    return [node for node in asserts if not isinstance(node.test, ast.Constant)]


def _is_noise(node: ast.stmt) -> bool:
    """Docstrings, `pass`, and the METADATA that HumanEval's tests carry."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Name) and target.id == "METADATA" for target in node.targets)
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
