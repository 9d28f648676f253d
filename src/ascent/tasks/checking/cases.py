"""What a task's tests ask and expect, as far as it can be read from them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ascent.sandbox.types import AssertTest, FunctionTest, Test
from ascent.tasks.checking.mutants import parsed
from ascent.types import Task


class _Unknown:
    """Stands for an expected value that can't be read."""

    def __repr__(self) -> str:
        return "(unknown)"


UNKNOWN = _Unknown()


@dataclass(frozen=True, slots=True)
class Case:
    """A call of the program's function with plain data, and what it must return (UNKNOWN where that isn't said)."""

    function: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    expected: Any

    @property
    def asked(self) -> str:
        """The arguments as text, equal for equal ones."""
        named = [f"{name}={self.kwargs[name]!r}" for name in sorted(self.kwargs)]
        return ", ".join([*map(repr, self.args), *named])


def cases(tests: Sequence[Test], entry_point: str | None) -> list[Case]:
    """The calls in function tests, and in asserts of the form `assert f(literals) == literal` and their like."""
    found: list[Case] = []
    for test in tests:
        if isinstance(test, FunctionTest):
            found.append(Case(test.function, test.args, test.kwargs, test.expected))
        elif isinstance(test, AssertTest):
            found += _asserted(test.code, entry_point)
    return found


def functions(task: Task) -> list[str]:
    """The functions (or `Class.method`) that the tests call, in order."""
    named = [test.function for test in task.tests if isinstance(test, FunctionTest)]
    if task.entry_point is not None and any(isinstance(test, AssertTest) for test in task.tests):
        named.append(task.entry_point)
    return list(dict.fromkeys(named))


def _asserted(code: str, entry_point: str | None) -> Iterator[Case]:
    tree = parsed(code)
    if tree is None or entry_point is None:
        return
    names = {entry_point}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in names:
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}  # candidate = f
        elif isinstance(node, ast.Assert):
            case = _case(node.test, names, entry_point)
            if case is not None:
                yield case


def _case(test: ast.expr, names: set[str], entry_point: str) -> Case | None:
    expected: Any = UNKNOWN
    call: ast.expr = test
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        call, expected = test.operand, False
    elif isinstance(test, ast.Compare) and len(test.ops) == 1:
        call, other = test.left, test.comparators[0]
        if not isinstance(call, ast.Call):
            call, other = other, call
        if isinstance(test.ops[0], (ast.Eq, ast.Is)):
            expected = _literal(other)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in names:
        return None
    args = [_literal(arg) for arg in call.args]
    kwargs = {keyword.arg: _literal(keyword.value) for keyword in call.keywords if keyword.arg is not None}
    if UNKNOWN in (*args, *kwargs.values()) or len(kwargs) < len(call.keywords):
        return None
    return Case(entry_point, tuple(args), kwargs, expected)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return UNKNOWN
