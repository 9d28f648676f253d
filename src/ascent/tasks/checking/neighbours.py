"""Inputs near those of a task's tests: where a changed program may answer otherwise than the reference."""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

from ascent.tasks.checking.cases import Case
from ascent.tasks.checking.mutants import parsed

_LONGEST = 400  # characters of an input's text
_LARGEST = 10_000  # numbers above are left as they are: a loop up to them would take long


def neighbours(known: Sequence[Case], *, most: int, source: str = "", seed: str = "") -> list[Case]:
    """At most `most` calls that no test makes, one argument changed at a time. Arguments of one test with those of
    another, which are likely to be allowed; the values that the program itself compares with; arguments changed a
    little. What they must return is unknown."""
    draw = random.Random(seed)
    seen = {(case.function, case.asked) for case in known}
    kinds = [list(_crossed(known)), list(_told(known, literals(source))), list(_near(known))]
    for kind in kinds:
        draw.shuffle(kind)
    found: list[Case] = []
    for row in itertools.zip_longest(*kinds):
        for case in filter(None, row):
            key = case.function, case.asked
            if key not in seen and len(key[1]) <= _LONGEST and len(found) < most:
                seen.add(key)
                found.append(case)
    return found


def literals(source: str) -> list[Any]:
    """The numbers and strings in a program, each once, and for whole numbers the ones beside it. No docstrings."""
    tree = parsed(source)
    nodes = list(ast.walk(tree)) if tree is not None else []
    spoken = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    found: dict[tuple[type, Any], None] = {}
    for value in (node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in spoken):
        if type(value) is int and abs(value) <= _LARGEST:
            found |= {(int, value + by): None for by in (-1, 0, 1)}
        elif isinstance(value, (float, str)) and len(str(value)) <= 40:
            found[type(value), value] = None
    return [value for _, value in found]


def _told(known: Sequence[Case], told: Sequence[Any]) -> Iterator[Case]:
    """An argument, or the first item of one, is a value of the program's own."""
    for case in known[:4]:
        for place, value in enumerate(case.args):
            for other in told:
                if type(other) is type(value):
                    yield _with(case, place, other)
                elif isinstance(value, list) and value and type(other) is type(value[0]):
                    yield _with(case, place, [other, *value[1:]])


def _crossed(known: Sequence[Case]) -> Iterator[Case]:
    for one, other in itertools.permutations(known[:12], 2):
        if one.function != other.function or len(one.args) != len(other.args):
            continue
        for place in range(len(one.args)):
            yield _with(one, place, other.args[place])


def _near(known: Sequence[Case]) -> Iterator[Case]:
    for case in known[:12]:
        for place, value in enumerate(case.args):
            for other in changes(value):
                yield _with(case, place, other)


def _with(case: Case, place: int, value: Any) -> Case:
    return Case(case.function, (*case.args[:place], value, *case.args[place + 1 :]), case.kwargs, None)


def changes(value: Any) -> Iterator[Any]:
    """Values of the same type that differ a little. Lists and strings stay short."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        if abs(value) <= _LARGEST:
            yield from (value + 1, value - 1, 0, 1, value + 2)
    elif isinstance(value, float):
        yield from (value + 0.5, value - 0.5, 0.0)
    elif isinstance(value, str):
        yield from (value[:-1], value[1:], value + value[-1:], value[::-1], value.swapcase(), "")
    elif isinstance(value, (list, tuple)):
        yield from (type(value)(each) for each in _sequences(list(value)))
    elif isinstance(value, dict):
        yield {}
        yield dict(list(value.items())[:-1])
        for key in list(value)[:2]:
            yield from ({**value, key: other} for other in itertools.islice(changes(value[key]), 2))
    elif isinstance(value, (set, frozenset)):
        yield type(value)()
        yield type(value)(sorted(value, key=repr)[:-1])


def _sequences(items: list[Any]) -> Iterator[list[Any]]:
    yield []
    yield items[:-1]
    yield items[1:]
    yield items[::-1]
    yield items[:1]
    if items:
        yield [*items, items[-1]]
        yield [*items, items[0]]
    for place in range(min(len(items), 4)):
        for other in itertools.islice(changes(items[place]), 2):
            yield [*items[:place], other, *items[place + 1 :]]
