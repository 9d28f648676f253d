"""The rules' general texts (`data/rules/packages.toml`): every finding carries the number of one."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from ascent.environment.finding import Finding, Level


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
    """All rules by number, in order."""
    text = resources.files("ascent.environment").joinpath("data/rules/packages.toml").read_text("utf-8")
    return {
        number: Rule(number, each["title"], tuple(each["levels"]), each["why"], tuple(each["mend"]), each["source"])
        for number, each in sorted(tomllib.loads(text).items())
    }


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
