"""The vendor's status codes: which stand in a log, what each means, what to look at for one that isn't in the table.

`data/codes/names_*.toml` hold the vendor's own names of all codes that it publishes (`scripts/vendor_codes.py`).
A family in `families.toml` is a table `[[family]]`:

    id       names it
    layer    which part of the software reports these codes
    match    expression of a code, in lower case; a named group `code` where more than the code must stand there
    unknown  what to look at for a member that the table doesn't know
    inner    members that only say that something failed inside
    codes    member -> [what it says, what to do ...], for those that people meet
    ranges   the same for expressions of many members
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from ascent.environment.known_faults import Fault
from ascent.environment.log_view import Evidence, Log, short
from ascent.environment.matching import Match
from ascent.environment.signs import MILD

_KNOWN_RANK, _UNKNOWN_RANK = 43, 16
_MOST = 6
HARDLY_ANYTHING = 0.3  # confidence of what only says that something failed


@dataclass(frozen=True)
class Meaning:
    """What a code says, and what to do about it."""

    text: str
    mend: tuple[str, ...] = ()


@dataclass(frozen=True)
class Family:
    """Codes of one form that one layer reports."""

    id: str
    layer: str
    match: re.Pattern[str]
    unknown: tuple[str, ...]
    codes: Mapping[str, Meaning]
    ranges: tuple[tuple[re.Pattern[str], Meaning], ...]
    inner: frozenset[str]

    def meaning(self, code: str) -> Meaning | None:
        """The table's meaning of a member, None for one that it doesn't know."""
        if code in self.codes:
            return self.codes[code]
        return next((meaning for shape, meaning in self.ranges if shape.fullmatch(code)), None)


@functools.cache
def load() -> tuple[Family, ...]:
    """The families that ship with the package."""
    folder = resources.files("ascent.environment").joinpath("data", "codes")
    tables = tomllib.loads(folder.joinpath("families.toml").read_text("utf-8"))["family"]
    return tuple(_family(table, names()) for table in tables)


@functools.cache
def names() -> Mapping[str, str]:
    """The vendor's own names of all codes that it publishes."""
    folder = resources.files("ascent.environment").joinpath("data", "codes")
    files = [file for file in folder.iterdir() if file.name.startswith("names_")]
    return {code: name for file in files for code, name in tomllib.loads(file.read_text("utf-8"))["names"].items()}


def _family(table: Mapping[str, Any], names: Mapping[str, str]) -> Family:
    shape = re.compile(table["match"])
    said = {code.upper(): Meaning(each[0], tuple(each[1:])) for code, each in table.get("codes", {}).items()}
    named = {code: Meaning(name) for code, name in names.items() if _member(table["id"], shape, code)}
    return Family(
        table["id"],
        table["layer"],
        shape,
        tuple(table["unknown"]),
        {**named, **said},
        tuple((re.compile(each), Meaning(text[0], tuple(text[1:]))) for each, text in table.get("ranges", {}).items()),
        frozenset(table.get("inner", ())),
    )


def _member(family: str, shape: re.Pattern[str], code: str) -> bool:
    if family == "hccl-result":
        return code.startswith("HCCL ")
    sample = f"error code is {code.lower()}" if code[0] in "-0123456789" else code.lower()
    match = shape.search(sample)
    return match is not None and family != "runtime-inner"


def explain(code: str) -> tuple[Family, Meaning | None] | None:
    """Family and meaning of a code such as `EI0006`, `507014` or `-8020`; None when it has the form of no family."""
    for family in load():
        if (meaning := family.meaning(code.upper())) or _member(family.id, family.match, code):
            return family, meaning
    return None


def meant(text: str) -> list[tuple[str, Meaning]]:
    """The codes that a piece of text states and the table explains, but for those that say nothing."""
    found: dict[str, Meaning] = {}
    for family in load():
        for match in family.match.finditer(text.lower()):
            code = _code(family, match)
            meaning = family.meaning(code)
            if meaning is not None and code not in family.inner:
                found.setdefault(code, meaning)
    return list(found.items())


def _code(family: Family, match: re.Match[str]) -> str:
    code = next((each for each in match.groups() if each), match[0]).upper()
    return f"HCCL {int(code)}" if family.id == "hccl-result" else code


def stated(log: Log) -> list[Match]:
    """A catch-all for each code that stands in the log, at its first place; none for codes that say nothing."""
    found: dict[str, Match] = {}
    for family in load():
        for place, code in _members(log, family):
            if code not in found and code not in family.inner and len(found) < _MOST:
                line = log.lines[place]
                found[code] = Match(as_fault(family, code), (Evidence(line.number, short(line.text)),), (place,))
    return list(found.values())


def _members(log: Log, family: Family) -> Iterator[tuple[int, str]]:
    seen: set[str] = set()
    for match in family.match.finditer(log.text):
        code = _code(family, match)
        if code in seen or code == "HCCL 0":
            continue
        place = log.place_of(match.start())
        if not MILD.search(log.lines[place].text[:200].lower()):
            seen.add(code)
            yield place, code


def as_fault(family: Family, code: str) -> Fault:
    """A code as an entry that says what it means."""
    meaning = family.meaning(code)
    if meaning is None:
        cause = f"{family.layer} reports {code}, a code of its own that the table doesn't hold."
    else:
        cause = f"{family.layer} reports {code}: {meaning.text}."
    return Fault(
        id=f"code-{code.lower().replace(' ', '-')}",
        cause=cause,
        mend=(meaning.mend if meaning else ()) or family.unknown,
        source=f"{family.layer}'s published codes",
        when=(),
        rank=_UNKNOWN_RANK if meaning is None else _KNOWN_RANK,
        catch_all=True,
        confidence=HARDLY_ANYTHING if meaning is None else 0.55,
    )
