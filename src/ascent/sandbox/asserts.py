"""Turns assert-style tests into calls with expected values where their syntax tree allows, so that test code
needn't run.

What an assert means is kept: `==` is Python's own ==, `is` is identity, a bare call is its truth value. An
assert that isn't of such a form is left to a tester process.
"""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass
from typing import Any

_LONGEST = 100_000


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the program's function, and the check of what it returns (see `inside/compare.py`)."""

    function: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    check: dict[str, Any]
    wants_args: bool = False


class _NotSimpleError(Exception):
    """This test needs a tester."""


def decompose(code: str) -> list[Call] | None:
    """The calls whose checks together are the test, or None. Raises SyntaxError when the test isn't
    Python."""
    tree = ast.parse(code)
    if len(code) > _LONGEST:
        return None
    try:
        calls = _calls(tree.body)
    except (_NotSimpleError, RecursionError):
        return None
    return calls or None


def _calls(body: list[ast.stmt]) -> list[Call]:
    checks = [node for node in body if isinstance(node, ast.FunctionDef)]
    if not checks:
        return [call for node in body for call in _statement(node, {})]
    if len(checks) != 1 or checks[0].name != "check" or checks[0].decorator_list:
        raise _NotSimpleError
    arguments = checks[0].args
    if len(arguments.args) != 1 or arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults:
        raise _NotSimpleError
    *before, last = [node for node in body if node is not checks[0]]
    if not all(_is_inert(node) for node in before) or body.index(last) < body.index(checks[0]):
        raise _NotSimpleError
    names = {arguments.args[0].arg: _checked_name(last)}
    return [call for node in checks[0].body for call in _statement(node, names)]


def _is_inert(node: ast.stmt) -> bool:
    """Nothing that an assert over literals could depend on."""
    return isinstance(node, ast.Assign) and isinstance(node.value, (ast.Dict, ast.Constant))


def _checked_name(node: ast.stmt) -> str:
    """`f` of a last line `check(f)`."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        if isinstance(call.func, ast.Name) and call.func.id == "check" and len(call.args) == 1 and not call.keywords:
            argument = call.args[0]
            if isinstance(argument, ast.Name):
                return argument.id
    raise _NotSimpleError


def _statement(node: ast.stmt, names: dict[str, str]) -> list[Call]:
    if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return []
    if not isinstance(node, ast.Assert):
        raise _NotSimpleError
    if node.msg is not None and not isinstance(node.msg, (ast.Constant, ast.JoinedStr)):
        raise _NotSimpleError
    if isinstance(node.test, ast.Constant) and node.test.value:
        return []
    return [_condition(node.test, names)]


def _condition(test: ast.expr, names: dict[str, str]) -> Call:
    if isinstance(test, ast.Call):
        return _call(test, names, {"mode": "truth", "expected": True})
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _call(test.operand, names, {"mode": "truth", "expected": False})
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        raise _NotSimpleError
    left, operator, right = test.left, test.ops[0], test.comparators[0]
    if isinstance(operator, ast.Eq):
        if not isinstance(left, ast.Call):
            left, right = right, left
        return _call(left, names, {"mode": "equal", "expected": _literal(right)})
    if isinstance(operator, ast.Is) and isinstance(right, ast.Constant) and right.value in (None, True, False):
        if type(right.value) not in (bool, type(None)):
            raise _NotSimpleError
        return _call(left, names, {"mode": "is", "expected": right.value})
    if isinstance(operator, (ast.Lt, ast.LtE)):
        return _distance(left, _literal(right), isinstance(operator, ast.Lt), names)
    raise _NotSimpleError


def _distance(left: ast.expr, bound: Any, is_open: bool, names: dict[str, str]) -> Call:
    """`abs(f(x) - 3.5) < 1e-6`, either way round."""
    if not (isinstance(left, ast.Call) and isinstance(left.func, ast.Name) and left.func.id == "abs"):
        raise _NotSimpleError
    if len(left.args) != 1 or left.keywords or type(bound) not in (int, float):
        raise _NotSimpleError
    inner = left.args[0]
    if not (isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub)):
        raise _NotSimpleError
    call, other = (inner.left, inner.right) if isinstance(inner.left, ast.Call) else (inner.right, inner.left)
    expected = _literal(other)
    if type(expected) not in (int, float):
        raise _NotSimpleError
    return _call(call, names, {"mode": "near", "expected": expected, "bound": bound, "open": is_open})


def _call(node: ast.expr, names: dict[str, str], check: dict[str, Any]) -> Call:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise _NotSimpleError
    if any(keyword.arg is None for keyword in node.keywords):
        raise _NotSimpleError
    function = names.get(node.func.id, node.func.id)
    args = tuple(_literal(argument) for argument in node.args)
    kwargs = {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    return Call(function, args, kwargs, check)


def _literal(node: ast.expr) -> Any:
    """The value of an expression made of literals only."""
    if isinstance(node, ast.BinOp):
        return _arithmetic(node)
    if isinstance(node, ast.List):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_literal(item) for item in node.elts)
    try:
        if isinstance(node, ast.Set):
            return {_literal(item) for item in node.elts}
        if isinstance(node, ast.Dict):
            keys = [key for key in node.keys if key is not None]
            if len(keys) != len(node.values):
                raise _NotSimpleError
            return {_literal(key): _literal(value) for key, value in zip(keys, node.values, strict=True)}
        value = ast.literal_eval(node)
    except (ValueError, TypeError) as error:
        raise _NotSimpleError from error
    if value is Ellipsis:
        raise _NotSimpleError
    return value


def _arithmetic(node: ast.BinOp) -> Any:
    left, right = _literal(node.left), _literal(node.right)
    if type(left) not in (int, float, complex) or type(right) not in (int, float, complex):
        raise _NotSimpleError
    try:
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            return left / right
        if isinstance(node.op, ast.Pow) and abs(left) <= 1000 and abs(right) <= 100:
            return left**right
    except (ArithmeticError, ValueError) as error:
        raise _NotSimpleError from error
    raise _NotSimpleError


def free_names(code: str) -> list[str]:
    """Names that test code reads and doesn't make itself: those that its program should define. A builtin's
    name counts only where the test hands it to its `check`, so that a program can't replace `abs` or `len`
    in a test. Raises SyntaxError."""
    tree = ast.parse(code)
    read: set[str] = set()
    made: set[str] = set()
    checked: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check":
            checked |= {argument.id for argument in node.args if isinstance(argument, ast.Name)}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            made.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            made |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return sorted(name for name in read - made if name in checked or not hasattr(builtins, name))
