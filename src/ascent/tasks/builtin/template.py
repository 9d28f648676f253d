"""What a built-in task is made from: a sentence and a solution with slots, and the values that the slots
take.

A slot is written `<name>`, or `<name.attribute>` for an attribute of the word that fills it; the text put in
may have slots of its own. A template with slots `op` (2 words) and `k` (8 numbers) gives 16 tasks, each in
every phrasing.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ascent.sandbox.types import FunctionTest
from ascent.types import Task

FUNCTION = "f"
VISIBLE, HIDDEN = 3, 6  # tests of each task
_SLOT = re.compile(r"<(\w+)(?:\.(\w+))?>")


@dataclass(frozen=True)
class Word:
    """A slot's value that reads one way in a sentence and another way in code.

    `name` stands in ids and parameters, `code` in solutions; `join`, `alt` and `verb` are ways to say it.
    `other` is code that it is easily mistaken for. `function` computes what the code does.
    """

    name: str
    code: str
    function: Callable[..., Any]
    join: str
    alt: str = ""
    verb: str = ""
    other: str = ""


Filling: TypeAlias = Mapping[str, Any]  # slot -> Word, int or str
Parameters: TypeAlias = tuple[tuple[str, str | int], ...]
Arguments: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True)
class Template:
    """A family of tasks that differ in their slots.

    `solution` is what follows `return`; so are `wrong`, typical mistakes beside those that `mistakes` makes.
    `function` computes the right result without them, so that a task's tests are an independent check of its
    solution; it is called with the filling, then with the arguments. `edges` gives inputs at which mistakes
    show, `draw` a random one.
    """

    family: str
    name: str
    arguments: str
    slots: Mapping[str, tuple[Any, ...]]
    phrasings: tuple[str, ...]
    solution: str
    wrong: tuple[str, ...]
    function: Callable[..., Any]
    edges: Callable[[Filling], list[Arguments]]
    draw: Callable[[random.Random, Filling], Arguments]

    def fillings(self) -> Iterator[Filling]:
        """Every combination of the slots' values."""
        for values in itertools.product(*self.slots.values()):
            yield dict(zip(self.slots, values, strict=True))


@dataclass(frozen=True, slots=True)
class BuiltinTask:
    """A task and what it was made from.

    `template` is unique among all families. `parameters` are the slots' values by name. `wrong_solutions` are
    completions (text after `task.prefix`), each of which fails a test; the same place in them is the same
    mistake in all tasks of a template.
    """

    task: Task
    template: str
    parameters: Parameters
    phrasing: int
    wrong_solutions: tuple[str, ...]

    @property
    def solution(self) -> str:
        """The reference as a completion: the text that follows the prompt."""
        return (self.task.reference or "")[len(self.task.prefix) :]

    @property
    def sentence(self) -> str:
        """What is asked, in words."""
        return str(self.task.prompt).split("\n", 1)[0].removeprefix("# ")


def fill(text: str, filling: Filling) -> str:
    """`text` with its slots filled."""

    def value_of(match: re.Match[str]) -> str:
        value, attribute = filling[match[1]], match[2]
        return str(getattr(value, attribute or "code")) if isinstance(value, Word) else str(value)

    while _SLOT.search(text):
        text = _SLOT.sub(value_of, text)
    return text


def mistakes(template: Template, filling: Filling) -> tuple[str, ...]:
    """Wrong solutions: a number that is one too large, a word's code mistaken for another, and the template's
    own."""
    found = []
    for slot, value in filling.items():
        if isinstance(value, int):
            found.append(fill(template.solution, {**filling, slot: value + 1}))
        elif isinstance(value, Word) and value.other:
            found.append(fill(template.solution, {**filling, slot: replace(value, code=value.other)}))
    return (*found, *(fill(text, filling) for text in template.wrong))


def parameters_of(filling: Filling) -> Parameters:
    """The filling as plain data."""
    return tuple((slot, value.name if isinstance(value, Word) else value) for slot, value in filling.items())


def tasks_of(template: Template, seed: int) -> Iterator[BuiltinTask]:
    """All tasks of a template, each in every phrasing; `seed` decides the drawn test inputs."""
    head = f"def {FUNCTION}({template.arguments}):"
    for filling in template.fillings():
        parameters = parameters_of(filling)
        name = f"builtin/{template.name}/{'-'.join(str(value) for _, value in parameters)}"
        tests = _tests(template, filling, random.Random(f"{seed}:{name}"))
        wrong = tuple(f"\n    return {text}" for text in mistakes(template, filling))
        for index, phrasing in enumerate(template.phrasings):
            task = Task(
                id=f"{name}/{index}",
                prompt=f"# {fill(phrasing, filling)}\n{head}",
                visible_tests=tests[:VISIBLE],
                hidden_tests=tests[VISIBLE:],
                entry_point=FUNCTION,
                family=template.family,
                prefix=head,
                reference=f"{head}\n    return {fill(template.solution, filling)}",
            )
            yield BuiltinTask(task, template.name, parameters, index, wrong)


def _tests(template: Template, filling: Filling, rng: random.Random) -> tuple[FunctionTest, ...]:
    """Distinct inputs with their results: the first edge and two drawn ones are visible."""
    first, *others = template.edges(filling)
    drawn: list[Arguments] = []
    while len(drawn) < max(VISIBLE - 1, VISIBLE + HIDDEN - 1 - len(others)):
        arguments = template.draw(rng, filling)
        if arguments not in (first, *others, *drawn):
            drawn.append(arguments)

    def result(arguments: Arguments) -> Any:
        return template.function(filling, *arguments)

    # Results other than the first come first, so that no constant passes all visible tests.
    drawn.sort(key=lambda arguments: bool(result(arguments) == result(first)))
    return tuple(FunctionTest(FUNCTION, given, result(given)) for given in (first, *drawn, *others))
