"""A parsed program with what is asked of it again and again: nodes, imports, the full names of what it calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProgramText:
    """`nodes` are all nodes outside of `if __name__ == "__main__":`, which no test runs, in no order that matters.
    `modules` are the names that imports bind to modules, and the modules; `aliases` says what a bound name stands for.
    `called` holds each call with the full name of what it calls ("" where that has none), `targets` what is assigned
    to."""

    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    modules: frozenset[str]
    aliases: dict[str, str]
    called: tuple[tuple[str, ast.Call], ...]
    targets: tuple[ast.expr, ...]

    @classmethod
    def of(cls, source: str) -> ProgramText:
        """Raises SyntaxError, ValueError, RecursionError or MemoryError for what is not a program."""
        tree = ast.parse(source)
        nodes = tuple(_nodes(tree))
        aliases, modules = _imports(nodes)
        called = tuple((_name(node.func, aliases), node) for node in nodes if isinstance(node, ast.Call))
        return cls(tree, nodes, frozenset(modules), aliases, called, tuple(_targets(nodes)))

    @property
    def calls(self) -> Iterator[str]:
        """The full names of what is called."""
        return (name for name, _ in self.called)

    def name_of(self, node: ast.expr | None) -> str:
        """The full name of an expression, such as `os.path.join` for `join` after `from os.path import join`; "" for
        what has none."""
        return "" if node is None else _name(node, self.aliases)

    def function(self, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The last function of that name, or method of `Class.method`."""
        *classes, last = name.split(".")
        found = None
        for node in self.nodes:
            holds = isinstance(node, ast.ClassDef) and node.name == classes[-1] if classes else node is self.tree
            if holds and isinstance(node, ast.ClassDef | ast.Module):
                for each in node.body:
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == last:
                        found = each
        return found


def _nodes(tree: ast.Module) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if not _is_main_guard(node):
            yield node
            waiting += ast.iter_child_nodes(node)


def _is_main_guard(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Compare)
        and isinstance(node.test.left, ast.Name)
        and node.test.left.id == "__name__"
    )


def _imports(nodes: tuple[ast.AST, ...]) -> tuple[dict[str, str], set[str]]:
    aliases, modules = {}, set()
    for node in nodes:
        if isinstance(node, ast.Import):
            for each in node.names:
                modules |= {each.name, each.asname or each.name.partition(".")[0]}
                if each.asname:
                    aliases[each.asname] = each.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
            aliases |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return aliases, modules


def _name(node: ast.expr, aliases: dict[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        return ".".join([aliases.get(node.id, node.id), *reversed(parts)])
    return f".{'.'.join(reversed(parts))}" if parts else ""  # a method of something without a name


def _targets(nodes: tuple[ast.AST, ...]) -> Iterator[ast.expr]:
    for node in nodes:
        if isinstance(node, ast.Assign):
            yield from node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            yield node.target
        elif isinstance(node, ast.Delete):
            yield from node.targets
