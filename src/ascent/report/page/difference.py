"""Two programs line by line."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from ascent.report.page.visible_text import cut

_MOST_LINES = 1000  # comparing takes time by the square of them


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of both programs, or of one."""

    of: Literal["both", "first", "second"]
    text: str


def difference(first: str, second: str) -> list[DiffLine]:
    """The lines of both, in order; what only one has stands where it belongs. Long programs are cut."""
    a, b = (cut(text)[0].splitlines()[:_MOST_LINES] for text in (first, second))
    lines: list[DiffLine] = []
    for tag, a1, a2, b1, b2 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if tag == "equal":
            lines += [DiffLine("both", line) for line in a[a1:a2]]
        else:
            lines += [DiffLine("first", line) for line in a[a1:a2]]
            lines += [DiffLine("second", line) for line in b[b1:b2]]
    return lines
