"""How far a text is a program: Python that chat follows, or that was cut off in the middle."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

# Characters that are parsed at most: so many times the text, and so many more, which keeps the work proportional to it.
# Two or three attempts are usual; what needs more than this was not meant as a program.
_TIMES, _MORE = 4, 200_000
_UNREADABLE = re.compile("[\0\ud800-\udfff]")  # no Python source holds these
_TRY = re.compile(r"\s*try\s*:")
_NOTHING = re.compile(r"\s*(#(?!.*(\"{3}|'{3})).*)?")  # empty, or a comment, unless a string may end in it


def longest_program(text: str) -> str:
    """The longest program that begins with the text's first line and ends with a line of it, not always with the
    comments and empty lines at its end; "" where none parses.

    Where the parser stops, no longer part of the text can be a program either, so that the next attempt ends above that
    line. What is only unfinished there (a head without its block, a `try` without its `except`) is then taken away from
    below.
    """
    lines = text.split("\n")
    unreadable = _UNREADABLE.search(text)
    end = text.count("\n", 0, unreadable.start()) if unreadable else len(lines)
    left = _TIMES * len(text) + _MORE
    while end and left > 0:
        program = "\n".join(lines[:end])
        left -= len(program)
        error = _error(program)
        if error is None:
            return program
        line = error.lineno if isinstance(error, SyntaxError) else None
        end = min(line or end, end) - 1
        if isinstance(error, SyntaxError) and "'except'" in error.msg:
            end = _above_unfinished_try(lines[: end + 1])
        while end and _leaves_open(lines[end - 1]) and not (end > 1 and lines[end - 2].endswith("\\")):
            end -= 1
    return ""


def parses(text: str) -> bool:
    """Whether a text is Python."""
    return _error(text) is None


def _error(text: str) -> Exception | None:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return error
    return None


def _above_unfinished_try(lines: Sequence[str]) -> int:
    """How many lines stand above the outermost `try` whose block the last line belongs to."""
    found, least = len(lines) - 1, None
    for number in range(len(lines) - 1, -1, -1):
        line = lines[number]
        if _says_nothing(line):
            continue
        indent = len(line) - len(line.lstrip())
        if least is None or indent < least:
            least = indent
            if _TRY.match(line):
                found = number
        if not indent:
            break
    return found


def _leaves_open(line: str) -> bool:
    """Whether no program ends with this line, or one that does also ends above it."""
    return _says_nothing(line) or (line.rstrip().endswith(":") and "#" not in line)


def _says_nothing(line: str) -> bool:
    return _NOTHING.fullmatch(line) is not None
