"""Small changes of a Python syntax tree, of the kinds that people and models get wrong. The kinds are those of mutation
testing (Offutt et al., 1996, "An experimental determination of sufficient mutant operators", and its descendants for
Python); those tools change files on a disk and drive a test runner, so the changes are made here.

Each operator is a function from a node to the nodes that may stand in its place.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import TypeAlias

Operator: TypeAlias = Callable[[ast.AST], Iterator[ast.AST]]

_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
_BOUNDARY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list", "reversed": "list"}
_METHODS = {
    **{"lower": "upper", "upper": "lower", "lstrip": "rstrip", "rstrip": "lstrip", "strip": "lstrip"},
    **{"find": "rfind", "rfind": "find", "startswith": "endswith", "endswith": "startswith"},
    **{"append": "extend", "union": "intersection", "intersection": "union", "isupper": "islower"},
    **{"keys": "values", "values": "keys", "islower": "isupper", "isdigit": "isalpha", "isalpha": "isdigit"},
}
_DROPPED = (ast.Expr, ast.Assign, ast.AugAssign, ast.Return, ast.Raise, ast.For, ast.While, ast.If)


def arithmetic(node: ast.AST) -> Iterator[ast.AST]:
    """`a + b` -> `a - b`, `a += b` -> `a -= b`."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _ARITHMETIC:
        yield changed(node, op=_ARITHMETIC[type(node.op)]())


def boundary(node: ast.AST) -> Iterator[ast.AST]:
    """`a < b` -> `a <= b`."""
    yield from _compared(node, _BOUNDARY)


def negation(node: ast.AST) -> Iterator[ast.AST]:
    """`a == b` -> `a != b`, `not a` -> `a`, `-a` -> `a`."""
    yield from _compared(node, _NEGATED)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node.operand


def logic(node: ast.AST) -> Iterator[ast.AST]:
    """`a and b` -> `a or b`, and one of the two left out."""
    if isinstance(node, ast.BoolOp):
        yield changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        for place in range(len(node.values)):
            rest = node.values[:place] + node.values[place + 1 :]
            yield rest[0] if len(rest) == 1 else changed(node, values=rest)


def constant(node: ast.AST) -> Iterator[ast.AST]:
    """`3` -> `4`, `2`; `True` -> `False`; `"a"` -> `""`."""
    if not isinstance(node, ast.Constant):
        return
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, (int, float)):
        yield ast.Constant(value + 1)
        yield ast.Constant(value - 1)
    elif isinstance(value, str):
        yield ast.Constant("" if value else " ")


def bounds(node: ast.AST) -> Iterator[ast.AST]:
    """`range(n)` -> `range(n - 1)`, `range(n + 1)`; `xs[i:j]` -> `xs[i + 1:j]`, `xs[i:j - 1]`, and without a bound."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range" and node.args:
        place = 0 if len(node.args) == 1 else 1
        for by in (-1, 1):
            yield changed(node, args=[*node.args[:place], _shifted(node.args[place], by), *node.args[place + 1 :]])
    elif isinstance(node, ast.Slice):
        for field, by in (("lower", 1), ("upper", -1)):
            bound = getattr(node, field)
            if bound is not None:
                yield changed(node, **{field: None})
                yield changed(node, **{field: _shifted(bound, by)})


def branches(node: ast.AST) -> Iterator[ast.AST]:
    """The branches of an `if` swapped, its `else` left out, and a filter of a comprehension left out."""
    if isinstance(node, ast.IfExp):
        yield changed(node, body=node.orelse, orelse=node.body)
    elif isinstance(node, ast.If):
        yield changed(node, test=ast.UnaryOp(ast.Not(), node.test))
        if node.orelse:
            yield changed(node, orelse=[])
    elif isinstance(node, ast.comprehension):
        for place in range(len(node.ifs)):
            yield changed(node, ifs=node.ifs[:place] + node.ifs[place + 1 :])


def calls(node: ast.AST) -> Iterator[ast.AST]:
    """`min(xs)` -> `max(xs)`, `s.lower()` -> `s.upper()`, and a keyword argument left out."""
    if not isinstance(node, ast.Call):
        return
    if isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        other = _FUNCTIONS[node.func.id]
        yield changed(node, func=ast.Name(other), keywords=[] if other == "list" else node.keywords)
    elif isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
        yield changed(node, func=changed(node.func, attr=_METHODS[node.func.attr]))
    for place in range(len(node.keywords)):
        yield changed(node, keywords=node.keywords[:place] + node.keywords[place + 1 :])


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """A statement left out; `break` -> `continue`."""
    if isinstance(node, _DROPPED):
        yield ast.Pass()
    elif isinstance(node, ast.Break):
        yield ast.Continue()
    elif isinstance(node, ast.Continue):
        yield ast.Break()


OPERATORS: dict[str, Operator] = {
    operator.__name__: operator
    for operator in (arithmetic, boundary, negation, logic, constant, bounds, branches, calls, statements)
}


def changed(node: ast.AST, **fields: object) -> ast.AST:
    """A copy of a node with other fields; it shares its children."""
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _compared(node: ast.AST, table: dict[type[ast.cmpop], type[ast.cmpop]]) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            if type(operator) in table:
                yield changed(node, ops=[*node.ops[:place], table[type(operator)](), *node.ops[place + 1 :]])


def _shifted(node: ast.expr, by: int) -> ast.expr:
    return ast.BinOp(node, ast.Add() if by > 0 else ast.Sub(), ast.Constant(abs(by)))
