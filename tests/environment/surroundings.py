"""What happens to a log before somebody asks about it: it is pasted, wrapped, escaped, cut, and stands among others."""

from __future__ import annotations

import html
import random
import re
import textwrap
from collections.abc import Callable, Sequence

from ascent.environment.known_faults import Fault


def wrapped_hard(width: int) -> Callable[[str], str]:
    """Broken after so many characters, as a terminal does."""

    def wrap(log: str) -> str:
        return "\n".join(
            line[start : start + width] for line in log.splitlines() for start in range(0, max(1, len(line)), width)
        )

    return wrap


def wrapped_at_words(width: int) -> Callable[[str], str]:
    """Broken between words, as an editor does."""

    def wrap(log: str) -> str:
        return "\n".join("\n".join(textwrap.wrap(line, width, break_on_hyphens=False)) for line in log.splitlines())

    return wrap


def coloured(log: str) -> str:
    return "\n".join(f"\x1b[31;1m{line}\x1b[0m" for line in log.splitlines())


def with_time_and_rank(log: str) -> str:
    return "\n".join(
        f"2026-03-02 10:{i % 60:02d}:07,123 [rank{i % 8}]: {line}" for i, line in enumerate(log.splitlines())
    )


def with_container_prefix(log: str) -> str:
    return "\n".join(f"(EngineCore_DP0 pid={100 + i}) {line}" for i, line in enumerate(log.splitlines()))


def with_zeros_read_as_letters(log: str) -> str:
    """As a screenshot's reader writes six-digit codes."""
    return re.sub(r"(?<![\dA-Za-z.])\d0\d{4}(?![\dA-Za-z.])", lambda match: match[0].replace("0", "O"), log)


PASTES: dict[str, Callable[[str], str]] = {
    "wrapped at 80": wrapped_hard(80),
    "wrapped at 120": wrapped_hard(120),
    "wrapped at words, 80": wrapped_at_words(80),
    "wrapped at words, 120": wrapped_at_words(120),
    "escaped": html.escape,
    "escaped twice": lambda log: html.escape(html.escape(log)),
    "coloured": coloured,
    "time and rank": with_time_and_rank,
    "container's prefix": with_container_prefix,
    "letters O": with_zeros_read_as_letters,
    "indented and quoted": lambda log: "\n".join(f"> {line}" for line in log.splitlines()),
    "carriage returns": lambda log: log.replace("\n", "\r\n"),
}


def interleaved(log: str, rng: random.Random, ranks: int) -> str:
    """The log as several ranks write it, each its own copy, line by line in turn."""
    copies = [[f"[rank{rank}]: {line}" for line in log.splitlines()] for rank in range(ranks)]
    result = []
    while any(copies):
        copy = rng.choice([each for each in copies if each])
        result.append(copy.pop(0))
    return "\n".join(result)


def evidence_for(fault: Fault) -> str | None:
    """Lines that hold what the first list of an entry asks for; None where it asks for figures or versions."""
    lines = []
    for pattern in fault.when[0]:
        if pattern.measures or pattern.version:
            return None
        text = pattern.text.lstrip("~!").split(" || ")[0].strip()
        if text.startswith("#"):
            text = f"call failed, error code is {text[1:]}"
        text = text.removeprefix("^").removesuffix("$")
        lines.append(re.sub(r"\s*\*\s*", " x ", text).replace("<n>", "7"))
    return "\n".join(lines)


def surrounded(evidence: str, healthy: Sequence[str], notes: Sequence[str], rng: random.Random) -> str:
    """The evidence somewhere in logs of other components that are well, perhaps as several ranks write it, beside a
    harmless note.
    """
    middle = interleaved(evidence, rng, rng.randint(2, 4)) if rng.random() < 0.4 else evidence
    if rng.random() < 0.5:
        middle = f"{rng.choice(notes)}\n{middle}" if rng.random() < 0.5 else f"{middle}\n{rng.choice(notes)}"
    before, after = (_cut(rng.choice(healthy), rng) for _ in range(2))
    return f"{before}\n{middle}\n{after}\n"


def _cut(log: str, rng: random.Random) -> str:
    lines = log.splitlines() or [""]
    first = rng.randrange(len(lines))
    repeated = lines[first : rng.randint(first + 1, len(lines))]
    return "\n".join(repeated * rng.randint(1, 4))
