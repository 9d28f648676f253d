"""The same task twice. Over the split it makes a held-out result worth less: the policy was trained on it."""

from __future__ import annotations

import ast
import builtins
import copy
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from ascent.sandbox.types import AssertTest, FunctionTest
from ascent.tasks.checking.cases import UNKNOWN, cases
from ascent.tasks.checking.findings import Finding
from ascent.tasks.checking.given_away import prompt_text
from ascent.tasks.checking.mutants import parsed
from ascent.types import Task

_SHINGLE = 3  # words in a row
_ALIKE = 0.8  # Jaccard similarity of two prompts' shingles from which on they ask the same
_LEAST_WORDS = 12  # of a prompt that is compared so: shorter ones differ by a word that means everything
_BUILTINS = frozenset(dir(builtins))


def duplicates(train: Sequence[Task], held_out: Sequence[Task]) -> list[Finding]:
    """Findings on tasks that stand twice: a warning on a held-out task that training has too, a note on one that
    its own half has. Equal prompts, equal solutions (but for names), equal tests, and prompts that are nearly equal."""
    tasks = [*train, *held_out]
    unseen = {task.id for task in held_out}
    reasons: dict[tuple[str, bool], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for why, pairs in (
        ("the same prompt", _equal(tasks, _prompt_key)),
        ("the same solution, but for names", _equal(tasks, _solution_key)),
        ("the same tests", _equal(tasks, _tests_key)),
        ("nearly the same prompt", _alike(tasks)),
    ):
        for earlier, later in pairs:
            over = later in unseen and earlier not in unseen
            others = reasons[later, over]
            if why != "nearly the same prompt" or "the same prompt" not in others.get(earlier, ()):
                others[earlier].append(why)
    return [_finding(task_id, over, others) for (task_id, over), others in reasons.items()]


def _finding(task_id: str, over: bool, others: Mapping[str, Sequence[str]]) -> Finding:
    first, why = next(iter(others.items()))
    more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
    what = f"{'is held out, and training has' if over else 'stands beside'} {first}{more} with {' and '.join(why)}"
    add = "leave one of them out, or hold out both" if over else "leave one of them out"
    return Finding(task_id, "duplicate-over-split" if over else "duplicate", what, add, tuple(others)[:5])


def _equal(tasks: Sequence[Task], key: Callable[[Task], Hashable]) -> Iterator[tuple[str, str]]:
    """(earlier, later): the first task that has a key, with each later one that has it; None is nobody's key."""
    by_key: dict[Hashable, list[str]] = defaultdict(list)
    for task in tasks:
        found = key(task)
        if found is not None:
            by_key[found].append(task.id)
    for ids in by_key.values():
        yield from ((ids[0], other) for other in ids[1:])


def _words(task: Task) -> list[str]:
    text = prompt_text(task)
    if task.entry_point:
        text = re.sub(rf"\b{re.escape(task.entry_point)}\b", "f", text)
    return re.findall(r"\w+|[^\w\s]", text.lower())


def _prompt_key(task: Task) -> Hashable:
    return tuple(_words(task)) or None


def _tests_key(task: Task) -> Hashable:
    """What is asked and expected, whatever the function is called."""
    if not all(isinstance(test, (AssertTest, FunctionTest)) for test in task.tests):
        return tuple(sorted(map(repr, task.tests))) or None
    found = cases(task.tests, task.entry_point)
    if len(found) < max(2, len(task.tests)) or any(case.expected is UNKNOWN for case in found):
        return None
    return tuple(sorted(f"{case.asked} -> {case.expected!r}" for case in found))


def _solution_key(task: Task) -> Hashable:
    tree = parsed(task.reference or "") if task.language == "python" else None
    if tree is None or not tree.body:
        return None
    try:
        return ast.dump(_Renamed().visit(copy.deepcopy(tree)))
    except RecursionError:
        return None


class _Renamed(ast.NodeTransformer):
    """The names that a program gives itself become numbers, docstrings and annotations go."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def _name(self, name: str) -> str:
        return name if name in _BUILTINS else self._names.setdefault(name, f"v{len(self._names)}")

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self._name(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self._name(node.arg))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._name(node.name)
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        node.returns = None
        return self.generic_visit(node)


def _alike(tasks: Sequence[Task]) -> Iterator[tuple[str, str]]:
    """(earlier, later): prompts whose shingles have a Jaccard similarity of at least `_ALIKE`. All of them are found by
    looking only at pairs that share one of their rarest shingles (prefix filtering: Bayardo et al., 2007, "Scaling up
    all pairs similarity search")."""
    shingles = {task.id: _shingles(task) for task in tasks}
    frequency = Counter(shingle for each in shingles.values() for shingle in each)
    holders: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for task_id, own in shingles.items():
        rarest = sorted(own, key=lambda shingle: (frequency[shingle], shingle))
        candidates: dict[str, None] = {}
        for shingle in rarest[: len(own) - int(_ALIKE * len(own)) + 1]:
            candidates |= dict.fromkeys(holders[shingle])
            holders[shingle].append(task_id)
        for other in candidates:
            both = len(own & shingles[other])
            if both >= _ALIKE * (len(own) + len(shingles[other]) - both):
                yield other, task_id


def _shingles(task: Task) -> frozenset[tuple[str, ...]]:
    words = _words(task)
    if len(words) < _LEAST_WORDS:
        return frozenset()
    return frozenset(tuple(words[place : place + _SHINGLE]) for place in range(len(words) - _SHINGLE + 1))
