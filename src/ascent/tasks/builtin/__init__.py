"""The built-in tasks: small Python functions in six families, for the quickstart and for measurements.

Each asks in one sentence for a function body of one line. Sentences and solutions are systematic, so that a
policy of a million parameters can learn how their parts go together, and be tested on combinations that it
never saw.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ascent.errors import InputError
from ascent.tasks.builtin import arithmetic, conditionals, dictionaries, lists, loops, strings
from ascent.tasks.builtin.instruct import instruct_tasks
from ascent.tasks.builtin.template import BuiltinTask, Parameters, Template, parameters_of, tasks_of

__all__ = [
    "FAMILIES",
    "BuiltinTask",
    "Template",
    "builtin_tasks",
    "held_out_builtin",
    "held_out_count",
    "instruct_tasks",
]

_LARGEST_SHARE = 0.5
FAMILIES: Mapping[str, tuple[Template, ...]] = {
    "arithmetic": arithmetic.TEMPLATES,
    "lists": lists.TEMPLATES,
    "strings": strings.TEMPLATES,
    "conditionals": conditionals.TEMPLATES,
    "loops": loops.TEMPLATES,
    "dictionaries": dictionaries.TEMPLATES,
}


def builtin_tasks(seed: int = 0) -> tuple[BuiltinTask, ...]:
    """All built-in tasks in every phrasing. `seed` decides the drawn test inputs, nothing else."""
    return tuple(task for templates in FAMILIES.values() for template in templates for task in tasks_of(template, seed))


def held_out_builtin(seed: int = 0, share: float = 0.2) -> tuple[tuple[BuiltinTask, ...], tuple[BuiltinTask, ...]]:
    """(train, held-out): about `share` of the combinations of parameters of each template, in all phrasings.

    No held-out solution occurs in the training half. Each single value of a parameter keeps at least half of
    its combinations there, so every part of a held-out solution does occur.

    Raises:
        InputError: `share` is not between 0 and 0.5.
    """
    if not 0 < share <= _LARGEST_SHARE:
        raise InputError(f"the held-out share of the built-in tasks must lie above 0 and not above 0.5, not {share}")
    chosen = {
        (template.name, parameters)
        for templates in FAMILIES.values()
        for template in templates
        for parameters in _held_out_parameters(template, seed, share)
    }
    tasks = builtin_tasks(seed)
    train = tuple(task for task in tasks if (task.template, task.parameters) not in chosen)
    return train, tuple(task for task in tasks if (task.template, task.parameters) in chosen)


def held_out_count(tasks: Sequence[BuiltinTask], seed: int, count: int) -> tuple[frozenset[str], frozenset[str]]:
    """(held out, left out): the ids of `count` of these tasks, chosen as `held_out_builtin` does, from all templates
    alike. Further phrasings of the last combination are left out of both halves, as training would show its solution.

    Raises:
        InputError: so many can't be held out while every part of their solutions stays in training.
    """
    by_combination: dict[tuple[str, Parameters], list[str]] = {}
    for task in tasks:
        by_combination.setdefault((task.template, task.parameters), []).append(task.task.id)
    names = {template for template, _ in by_combination}
    places = [
        ((number + 0.5) / total, template.name, parameters)
        for templates in FAMILIES.values()
        for template in templates
        if template.name in names
        for total in [sum(1 for _ in template.fillings())]
        for number, parameters in enumerate(_held_out_parameters(template, seed, _LARGEST_SHARE))
    ]
    ids: list[str] = []
    for _, name, parameters in sorted(places, key=lambda place: (place[0], _place(place[1], place[2], seed))):
        if len(ids) >= count:
            break
        ids += by_combination[name, parameters]
    if len(ids) < count:
        raise InputError(
            f"held_out={count}: of these {len(tasks)} built-in tasks at most {len(ids)} can be held out",
            "Every part of a held-out solution must occur in training. Lower tasks.held_out.",
        )
    return frozenset(ids[:count]), frozenset(ids[count:])


def _held_out_parameters(template: Template, seed: int, share: float) -> list[Parameters]:
    """In the order in which a growing share takes them."""
    cells = [parameters_of(filling) for filling in template.fillings()]
    total, left = Counter(_values(cells)), Counter(_values(cells))
    chosen: list[Parameters] = []
    for cell in sorted(cells, key=lambda cell: _place(template.name, cell, seed)):
        if len(chosen) >= round(share * len(cells)):
            break
        if all(left[value] - 1 >= total[value] / 2 for value in cell):
            left.subtract(cell)
            chosen.append(cell)
    return chosen


def _values(cells: Iterable[Parameters]) -> Iterable[tuple[str, str | int]]:
    return (value for cell in cells for value in cell)


def _place(name: str, cell: Parameters, seed: int) -> bytes:
    return hashlib.sha256(f"{seed}:{name}:{cell}".encode()).digest()
