"""What a model wrote, as text that can do nothing but be read: controls and invisible characters are written out."""

from __future__ import annotations

import re

MOST_CHARACTERS = 100_000  # of one text on a page; the whole of it has an address of its own
# Letters to `str.isprintable`, but drawn as nothing.
_BLANKS = frozenset("\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_UNUSUAL = re.compile(r"[^\n\t\x20-\x7e]")


def visible(text: str) -> str:
    """The text with every control, direction mark, invisible or unassigned character as ``⟨U+202E⟩``.

    Newlines and tabs stay. What reorders, hides or steers (bidi marks, zero-width characters, escape sequences) is
    thereby seen and does nothing.
    """
    return _UNUSUAL.sub(_written_out, text)


def cut(text: str, most: int = MOST_CHARACTERS) -> tuple[str, int]:
    """The first `most` characters, made visible, and how many more there are."""
    return visible(text[:most]), max(0, len(text) - most)


def first_line(text: str, most: int = 120) -> str:
    """The first line with something in it, made visible and cut."""
    for line in text[: 4 * most].splitlines():
        if line.strip():
            shown = visible(line.strip())
            return shown if len(shown) <= most else f"{shown[: most - 1]}…"
    return ""


def in_a_line(text: str, most: int = 120) -> str:
    """The lines of a program in one, made visible and cut."""
    lines = [line.strip() for line in text[: 4 * most].splitlines() if line.strip()]
    shown = visible(" ↵ ".join(lines))
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _written_out(found: re.Match[str]) -> str:
    letter = found[0]
    if letter.isprintable() and letter not in _BLANKS:
        return letter
    return f"⟨U+{ord(letter):04X}⟩"
