"""The texts that are asked: the project's own in `prompts.jsonl`, or a file of the same form.

One JSON object a line: `id`, `text` (the prompt) and `continuation` (whose log-probabilities are measured).
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ascent.errors import InputError

_FIELDS = ("id", "text", "continuation")
_LONGEST_FILE = 2**20  # bytes: what is asked goes into the record


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, and a text that may follow it."""

    id: str
    text: str
    continuation: str


def read_prompts(file: Path | None = None) -> tuple[Prompt, ...]:
    """The project's own prompts, or those of a file. Raises InputError for a file that holds none or others."""
    if file is None:
        name = "prompts.jsonl"
        content = (resources.files("ascent.bench.regress") / name).read_text(encoding="utf-8")
    else:
        name, content = str(file), _content(file)
    prompts = tuple(
        _prompt(line, f"{name}, line {number}")
        for number, line in enumerate(content.split("\n"), start=1)
        if line.strip()
    )
    if not prompts:
        raise InputError(f"{name}: no prompt in it", f"Expected one JSON object a line: {', '.join(_FIELDS)}.")
    twice = [each for each, count in Counter(prompt.id for prompt in prompts).items() if count > 1]
    if twice:
        raise InputError(
            f"{name}: the id {twice[0]!r} stands there more than once", "Give each prompt an id of its own."
        )
    return prompts


def _content(file: Path) -> str:
    try:
        if file.stat().st_size > _LONGEST_FILE:
            raise InputError(f"{file}: {file.stat().st_size} bytes; expected at most {_LONGEST_FILE}")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: can't be read: {error}") from error


def _prompt(line: str, where: str) -> Prompt:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict) or set(row) != set(_FIELDS):
        found = ", ".join(sorted(row)) if isinstance(row, dict) else type(row).__name__
        raise InputError(f"{where}: expected an object with {', '.join(_FIELDS)}; found {found}")
    for name in _FIELDS:
        if not isinstance(row[name], str) or not row[name]:
            raise InputError(f"{where}: {name} must be a text that isn't empty")
    if not row["id"].isprintable():
        raise InputError(f"{where}: id {row['id']!r} has control characters")
    return Prompt(**row)
