"""Fenced blocks of Markdown: three or more backticks or tildes, a language, lines of code, and the same again."""

from __future__ import annotations

import re
from collections.abc import Iterator

_FENCE = re.compile(r"^[ \t]*(?P<ticks>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.-]*)[^\n]*$", re.MULTILINE)


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """(language, code) of each block that isn't empty, in order. One that isn't closed runs to the end of the text."""
    blocks = []
    position = 0
    while opening := _FENCE.search(text, position):
        closing = re.compile(
            rf"^[ \t]*{re.escape(opening['ticks'][0])}{{{len(opening['ticks'])},}}[ \t]*$", re.MULTILINE
        )
        end = closing.search(text, opening.end())
        code = text[opening.end() + 1 : end.start() if end else len(text)]
        if code.strip():
            blocks.append((opening["language"].lower(), code))
        position = end.end() if end else len(text)
    return blocks


def closed_fences(text: str) -> Iterator[tuple[int, int]]:
    """Where blocks begin and end that are closed again. A line that opens a block with a language within another one
    says that this other one was left open."""
    opening: re.Match[str] | None = None
    for match in _FENCE.finditer(text):
        if opening is None:
            opening = match
        elif match["ticks"][0] == opening["ticks"][0] and len(match["ticks"]) >= len(opening["ticks"]):
            if match["language"]:
                opening = match
            elif not match[0].strip().strip(match["ticks"][0]):
                yield opening.start(), match.end()
                opening = None
