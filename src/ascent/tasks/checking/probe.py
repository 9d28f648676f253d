"""What a program answers to inputs without expected values: source that says it in its output, and how it is read.

The probe runs in the sandbox as any program does. What it prints was written by the program that is probed: it is read
as literals, and nothing else is made of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ascent.sandbox.types import FunctionTest
from ascent.tasks.checking.cases import Case

CALLS = 12  # of one probe: the sandbox keeps the first 2000 characters of what a program prints
_NAME = "ascent_probe"
_ANSWER = re.compile(r"^(\d+) (.*)$", re.MULTILINE)
_PROBE = """


def {name}():
    import contextlib
    import io
    import zlib

    inf, nan = float("inf"), float("nan")
    for place, (function, args, kwargs) in enumerate([{calls}]):
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                text = repr(function()(*args, **kwargs))
            except Exception as error:
                text = "raised " + type(error).__name__
        if len(text) > 160:
            text = "long " + str(zlib.crc32(text.encode("utf-8", "replace")))
        print(place, text, flush=True)
"""


def probe_program(source: str, asked: Sequence[Case]) -> str:
    """The program with a function beside it that calls it as `asked` says and prints what came back."""
    calls = ", ".join(f"(lambda: {_target(case.function)}, {case.args!r}, {case.kwargs!r})" for case in asked)
    return source + _PROBE.format(name=_NAME, calls=calls)


def probe_test() -> FunctionTest:
    """The test that runs the probe."""
    return FunctionTest(_NAME, (), None)


def read_answers(output: str) -> dict[int, str]:
    """What was printed for each call, by its place; what was cut off is absent."""
    lines = output.split("\n")[:-1]  # the last one may be cut
    return {int(match[1]): match[2] for line in lines if (match := _ANSWER.match(line))}


def values(answers: Mapping[int, str]) -> dict[int, Any]:
    """Those answers that are plain data."""
    found = {}
    for place, text in answers.items():
        try:
            found[place] = ast.literal_eval(text)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue
    return found


def _target(function: str) -> str:
    """`f`, or a method of a new instance."""
    return function.replace(".", "().", 1)
