"""The rules' general texts, of which every finding carries a number: the entries of all files in `data/rules/`.

An entry is a table named by the rule's number: A1 host, A2 devices and driver, A3 CANN, A4 packages, A5 settings,
A6 pasted reports, A7 models, A8 smoke test, A9 several machines; each has a file.

    title   what the rule is about
    levels  those that the rule can give: ok, note, warning, error
    why     why it matters, in general; a finding may be more specific
    mend    what to do in general, step by step
    source  where it is known from

docs/rules.md is made from them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from ascent.environment.entries import Entry, by_id, read_files
from ascent.environment.finding import SEVERITY, Finding, Level

_NUMBER = re.compile(r"A[1-9]\d\d")


@dataclass(frozen=True)
class Rule:
    """One numbered rule: its title, the levels it can give, why it matters and what cures it in general."""

    number: str
    title: str
    levels: tuple[str, ...]
    why: str
    mend: tuple[str, ...]
    source: str


@functools.cache
def load() -> dict[str, Rule]:
    """The rules that ship with the package, by number, in order."""
    return read_rules(resources.files("ascent.environment").joinpath("data", "rules"))


def read_rules(folder: Traversable) -> dict[str, Rule]:
    """The rules of every file of a folder, by number, in order.

    Raises ValueError that names the file and the entry that is wrong.
    """
    entries = by_id(
        Entry(file, number, fields) for file, content in read_files(folder) for number, fields in content.items()
    )
    return {number: _rule(entry) for number, entry in sorted(entries.items())}


def _rule(entry: Entry) -> Rule:
    if not _NUMBER.fullmatch(entry.id):
        raise entry.wrong("expected a table named by a rule's number, such as [A101]")
    entry.expect_only("title", "levels", "why", "mend", "source")
    levels = entry.texts("levels")
    unknown = sorted(set(levels) - set(SEVERITY))
    if unknown:
        raise entry.wrong(f"levels must be some of {', '.join(SEVERITY)}, not {', '.join(unknown)}")
    return Rule(entry.id, entry.text("title"), levels, entry.text("why"), entry.texts("mend"), entry.text("source"))


def found(
    number: str,
    level: Level,
    what: str,
    *,
    why: str = "",
    mend: Sequence[str] | None = None,
    evidence: Sequence[str] = (),
    sure: bool = True,
) -> Finding:
    """A finding under a rule; reason and cure come from the rule where the check has no better ones."""
    rule = load()[number]
    if level == "ok":
        return Finding(level, number, what, evidence=tuple(evidence), sure=sure)
    cure = rule.mend if mend is None else tuple(mend)
    return Finding(level, number, what, why or rule.why, cure, tuple(evidence), sure)
