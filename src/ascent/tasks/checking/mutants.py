"""Wrong programs that look right: a reference with one small change. Tests that let them pass would let a policy's
mistakes pass as well."""

from __future__ import annotations

import ast
import itertools
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ascent.tasks.checking.mutation_operators import OPERATORS

LONGEST_SOURCE = 50_000  # characters: longer references are not changed


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed program. `change` says what was changed where, as `line 3: a < b -> a <= b`."""

    source: str
    operator: str
    change: str


@dataclass(frozen=True, slots=True)
class _Edit:
    """Another node for a place in the tree: a field of `parent`, or an element of it."""

    parent: Any
    field: str
    index: int | None
    old: ast.AST
    new: ast.AST
    operator: str

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def mutants(source: str, *, most: int, seed: str = "") -> list[Mutant]:
    """At most `most` different programs, each the source with one change; of every kind of change as many as of others,
    as far as there are so many. The same for the same seed. Nothing is run, and [] is given for source that isn't
    Python, is too deeply nested, or is longer than LONGEST_SOURCE."""
    try:
        tree = parsed(source)
        if tree is None:
            return []
        original = ast.unparse(tree)
        found: dict[str, Mutant] = {}
        for edit in _mixed(list(_edits(tree)), seed):
            if len(found) >= most:
                break
            mutant = _applied(edit, tree)
            if mutant is not None and mutant.source != original:
                found.setdefault(mutant.source, mutant)
    except RecursionError:
        return []
    return list(found.values())


def parsed(source: str) -> ast.Module | None:
    """The tree of a reference; None where it can't be read, or is too long to be worked with."""
    if len(source) > LONGEST_SOURCE:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # doubtful escape sequences in a data set are not ours to report
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _applied(edit: _Edit, tree: ast.Module) -> Mutant | None:
    edit.put(edit.new)
    try:
        source = ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    except (ValueError, TypeError, AttributeError):  # a tree that no source has, such as a slice without its parts
        return None
    finally:
        edit.put(edit.old)
    line = getattr(edit.old, "lineno", getattr(edit.parent, "lineno", 0))
    return Mutant(source, edit.operator, f"line {line}: {_shown(edit.old)} -> {_shown(edit.new)}")


def _shown(node: ast.AST) -> str:
    """The first line of a node's source, cut where it is long."""
    if isinstance(node, ast.Pass):
        return "(left out)"
    text = ast.unparse(ast.fix_missing_locations(node)).strip()
    first = text.split("\n", 1)[0]
    return first if len(first) <= 60 else f"{first[:57]}..."


def _edits(tree: ast.Module) -> Iterator[_Edit]:
    for parent, field, index, node in _places(tree):
        for name, operator in OPERATORS.items():
            for new in operator(node):
                yield _Edit(parent, field, index, node, new, name)


def _places(tree: ast.Module) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Every node and where it stands, without what says nothing to a test: docstrings, annotations, decorators, and
    what runs only as a script."""
    left: list[ast.AST] = [tree]
    while left:
        parent = left.pop()
        for field, value in ast.iter_fields(parent):
            if field in ("annotation", "returns", "decorator_list", "type_comment"):
                continue
            listed = value if isinstance(value, list) else [value]
            for index, node in enumerate(listed):
                if not isinstance(node, ast.AST) or _says_nothing(parent, node):
                    continue
                yield parent, field, index if isinstance(value, list) else None, node
                left.append(node)


def _says_nothing(parent: ast.AST, node: ast.AST) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr)):
        return True
    return isinstance(parent, ast.Module) and isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _mixed(edits: list[_Edit], seed: str) -> Iterator[_Edit]:
    """One of each kind in turn, each kind in a random order."""
    draw = random.Random(seed)
    draw.shuffle(edits)
    kinds = [[edit for edit in edits if edit.operator == name] for name in OPERATORS]
    for row in itertools.zip_longest(*kinds):
        yield from (edit for edit in row if edit is not None)
