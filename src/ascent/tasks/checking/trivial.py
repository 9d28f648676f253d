"""Programs that solve nothing. A task that one of them passes rewards nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ascent.sandbox.types import Language, StdioTest
from ascent.tasks.checking.cases import UNKNOWN, cases, functions
from ascent.types import Task

_MOST_CONSTANTS = 8
_LONGEST = 10_000  # characters of one: nobody guesses more
_CONSTANTS = ("True", "False", "0", "1", "''", "[]")
_DOES_NOTHING: dict[Language, str] = {
    "c": "int main(void) { return 0; }",
    "cpp": "int main() { return 0; }",
    "rust": "fn main() {}",
}
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?")


@dataclass(frozen=True, slots=True)
class TrivialProgram:
    """`what` says what it does instead of solving the task: "always returns 0"."""

    what: str
    source: str


def trivial_programs(task: Task) -> list[TrivialProgram]:
    """The empty program, ones that give back what they are given, and ones that give one answer whatever is asked."""
    if task.language != "python":
        return [TrivialProgram("does nothing", _DOES_NOTHING[task.language])]
    found = [TrivialProgram("is empty", "")]
    named = [name for name in functions(task) if _NAME.fullmatch(name)]
    if named:
        found.append(TrivialProgram("does nothing", _defined(named, "pass")))
        found.append(TrivialProgram("returns its first argument", _defined(named, "return args[0] if args else None")))
        found.append(TrivialProgram("always raises", _defined(named, "raise ValueError")))
        found += [
            TrivialProgram(f"always returns {_cut(value)}", _defined(named, f"return {value}"))
            for value in _constants([case.expected for case in cases(task.tests, task.entry_point)])
        ]
    stdio = [test for test in task.tests if isinstance(test, StdioTest)]
    if stdio:
        found.append(TrivialProgram("prints its input", "import sys\nprint(sys.stdin.read())\n"))
        short = [test.stdout for test in stdio if len(test.stdout) <= _LONGEST]
        printed = Counter(short).most_common(_MOST_CONSTANTS)
        found += [TrivialProgram(f"always prints {_cut(repr(out))}", f"print({out!r})\n") for out, _ in printed]
    return found


def lookup_program(task: Task) -> str | None:
    """A program that knows the answers of the visible tests and nothing else; None where they can't be read."""
    named = [name for name in functions(task) if _NAME.fullmatch(name)]
    seen = [case for case in cases(task.visible_tests, task.entry_point) if case.expected is not UNKNOWN]
    if named and seen:
        table = [(case.args, case.kwargs, case.expected) for case in seen]
        body = f"""for known, named, answer in {table!r}:
        if known == args and named == kwargs:
            return answer"""
        return _defined(named, body)
    shown = {test.stdin: test.stdout for test in task.visible_tests if isinstance(test, StdioTest)}
    if task.language == "python" and shown:
        return f"import sys\nprint({shown!r}.get(sys.stdin.read(), ''))\n"
    return None


_NUMBERS = "inf = float('inf')\nnan = float('nan')\n\n\n"  # as `repr` writes them


def _constants(expected: Sequence[Any]) -> Iterable[str]:
    """As source: what the tests expect, the most frequent first, and what is easily tried."""
    readable = [text for value in expected if value is not UNKNOWN and len(text := repr(value)) <= _LONGEST]
    wanted = [text for text, _ in Counter(readable).most_common(_MOST_CONSTANTS)]
    return dict.fromkeys((*wanted, *_CONSTANTS))


def _defined(names: Sequence[str], body: str) -> str:
    """Functions, and classes with methods, that all have this body. Values are written as `repr` does."""
    parts = []
    for name in names:
        owner, _, method = name.rpartition(".")
        if owner:
            inner = body.replace("\n", "\n    ")
            parts.append(f"class {owner}:\n    def {method}(self, *args, **kwargs):\n        {inner}\n")
        else:
            parts.append(f"def {method}(*args, **kwargs):\n    {body}\n")
    return _NUMBERS + "\n\n".join(parts)


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."
