"""Field cases and their right readings: from a `cases.toml`, or from an INDEX.md with one table row a file.

A `[[case]]` has file and kind (log, healthy, env, npusmi), and
    log      ids: entries that count as right; wrong_ids: entries that must not come first; cause_words, fix_words:
             expressions each of which must match the answer's cause, and its advice
    env      versions: what must be read; must_say: expressions each of which must match the answer
    npusmi   driver, devices, model, health, hbm_total_mb, hbm_used_mb, processes, supported: what must be read
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FILE = re.compile(r"(env|npusmi|log)-[\w-]+\.txt")
_TOKEN = re.compile(
    r"--[a-z][\w-]+|[A-Za-z][\w.-]*_[\w.-]*\w|\b[a-z]+-[a-z]\w+|\b[A-Z]{3,}[A-Za-z0-9]*\b|\b\d+(?:\.\d+)+\w*"
)
_SHARED_WORDS = 4  # words of a fix without a name in it that the advice must share, or all where it has fewer


@dataclass(frozen=True)
class Case:
    """A report and its right reading.

    ``causes`` are entries of which one must be named, ``never`` those that must not come first. Where the cause isn't
    an entry, each of ``says`` must stand in the named one. Each of ``fixes`` must stand in its advice. ``claims`` are
    the sentences of an INDEX.md about an environment or a table, ``facts`` the fields of a cases.toml.
    """

    name: str
    kind: str
    text: str
    healthy: bool = False
    causes: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    claims: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def read_cases(folder: Path) -> list[Case]:
    """The cases of a folder, from cases.toml where it is there, else from INDEX.md."""
    if (folder / "cases.toml").is_file():
        tables = tomllib.loads((folder / "cases.toml").read_text("utf-8"))["case"]
        return [_case(folder, table) for table in tables]
    cases = []
    for line in (folder / "INDEX.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if match := _FILE.fullmatch(cells[0]):
            cases.append(_indexed(match[1], folder / cells[0], cells[1:]))
    return cases


def _case(folder: Path, table: Mapping[str, Any]) -> Case:
    kind = table["kind"]
    return Case(
        table["file"],
        "log" if kind == "healthy" else kind,
        _text(folder / table["file"]),
        healthy=kind == "healthy",
        causes=tuple(table.get("ids", ())),
        never=tuple(table.get("wrong_ids", ())),
        says=tuple(table.get("cause_words", ())),
        fixes=tuple(table.get("fix_words", ())),
        facts=table,
    )


def _indexed(kind: str, file: Path, cells: Sequence[str]) -> Case:
    if kind != "log":
        return Case(file.name, kind, _text(file), claims=cells[1])
    family, _, fix = cells[:3]
    return Case(file.name, kind, _text(file), family.endswith("healthy"), (family,), fixes=_names_in(fix))


def _text(file: Path) -> str:
    return file.read_text("utf-8", errors="replace")


def _names_in(fix: str) -> tuple[str, ...]:
    """An expression for the names in a described fix (settings, commands, versions), or for its words without any."""
    names = dict.fromkeys(re.escape(name.strip(".")) for name in _TOKEN.findall(fix))
    words = dict.fromkeys(word[:6] for word in re.findall(r"[a-z]{5,}", fix.lower()))
    every = "".join(f"(?=.*{word})" for word in list(words)[:_SHARED_WORDS])
    return ("|".join(names),) if names else (every,) if every else ()
