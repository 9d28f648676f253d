"""The faults that `ascent diagnose` knows: the entries of all files in `data/faults/`, each of which holds one area.

An entry is a table `[[fault]]` with these fields; in which file and where it stands changes no result.

    id          names the fault; stands once in all files
    when        any of these lists; every pattern of a list must be seen, all in one place of the log
    unless      patterns that rule the fault out: on the line of the first pattern, or anywhere with `~`
    rank        how near to the root it lies, 0 to 100: of several faults in one log the highest is the primary cause
                (default 60)
    hides       faults that merely follow from this one; their ranks are lower
    level       error (default), warning, note (never an alarm)
    catch_all   true: it says that something failed, hardly what; it stands back wherever another entry says more, and
                rests on no line that says INFO, DEBUG or WARNING
    passes      true: no fault where the run comes to its end after it (a file that wasn't needed, a call that was
                tried again)
    confidence  how surely the patterns mean this fault, up to 1 (default 0.7)
    decide      where it may have other causes: what would tell, the likeliest first
    cause       what went wrong
    mend        what to do, step by step
    source      where the fault is known from; a number after # is a public issue or pull request

A pattern is plain text, any case, within one line: `*` is anything, `<n>` a number, `||` an alternative.
At its head: `~` anywhere in the log, for settings and for what kind of run it is; `!` not on a line that says INFO,
DEBUG or WARNING; `+` on any line, in a catch-all too. `^` before an alternative: the message begins the line, but for
rank, process, level and time; `$` after it: it ends the line.
`#507014` is a status code where one can stand ("error code is", "runtime result =", "failed:").
`@name` is a reading of numbers (measures, trends, drifts); `@torch < 2.5.1` compares a version stated in the log.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from ascent.environment.entries import Entry, by_id, read_files
from ascent.environment.finding import Level

_LEVELS: tuple[Level, ...] = ("error", "warning", "note")
_CODE = (
    r"(?:codes?(?:\s+is|\s*[:=])?|result(?:\s*[:=]|\s+is)?|ret(?:code)?\s*[:=]|errcode\s*[:=]|errno\s*[:=]?"
    r"|failed\s*[:,]?|error(?:\s*no)?\s*[:=\[(]?|(?:错误|返回)码\s*[为是:：]?)\s*\[?\(?"
)
# What may stand before a message in its line: rank, process, level, time.
_LINE_START = r"(?m:^)(?:\[[^\]\n]*\]:?|\([^)\n]*\)|[\w./-]+\.py:\d+\]|error|[\d:., |>-])*"
_IMPORT = ("no module named", "cannot import name")


@dataclass(frozen=True)
class Fault:
    """One known fault; the fields are those of its entry."""

    id: str
    cause: str
    mend: tuple[str, ...]
    source: str
    when: tuple[tuple[Pattern, ...], ...]
    unless: tuple[Pattern, ...] = ()
    hides: tuple[str, ...] = ()
    level: Level = "error"
    rank: int = 60
    catch_all: bool = False
    passes: bool = False
    confidence: float = 0.7
    decide: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pattern:
    """Alternatives, one of which must be seen: each a literal piece that a matching line contains, and the
    expression.
    """

    text: str
    alternatives: tuple[tuple[str, re.Pattern[str]], ...]  # all in lower case, like the text they are looked for in
    measures: tuple[str, ...] = ()
    strict: bool = False  # not on lines that say INFO, DEBUG or WARNING
    anywhere: bool = False  # a setting or a kind of run: it holds wherever it stands
    version: tuple[str, str] | None = None

    @property
    def of_the_log(self) -> bool:
        """Whether it holds for the log as a whole, not for a place in it."""
        return self.anywhere or bool(self.measures) or self.version is not None


@functools.cache
def load() -> tuple[Fault, ...]:
    """The faults that ship with the package."""
    return read_faults(resources.files("ascent.environment").joinpath("data", "faults"))


def read_faults(folder: Traversable) -> tuple[Fault, ...]:
    """The faults of every file of a folder. Raises ValueError that names the file and the entry that is wrong."""
    entries = by_id(entry for file, content in read_files(folder) for entry in _entries(file, content))
    faults = {name: _fault(entry) for name, entry in entries.items()}
    for fault in faults.values():
        for hidden in fault.hides:
            if hidden not in faults:
                raise entries[fault.id].wrong(f"it hides {hidden!r}, which is no known fault")
            if faults[hidden].rank >= fault.rank:
                raise entries[fault.id].wrong(f"it hides {hidden!r}, so its rank must be above {faults[hidden].rank}")
    return tuple(faults.values())


def _entries(file: str, content: Mapping[str, Any]) -> Iterator[Entry]:
    tables = content.get("fault")
    if set(content) != {"fault"} or not isinstance(tables, list):
        raise ValueError(f"{file}: expected tables [[fault]] and nothing else, not {', '.join(content) or 'nothing'}")
    for place, table in enumerate(tables, 1):
        yield Entry(file, Entry(file, f"number {place}", table).text("id"), table)


def _fault(entry: Entry) -> Fault:
    entry.expect_only(*(field.name for field in fields(Fault)))
    level = entry.text("level", "error")
    if level not in _LEVELS:
        raise entry.wrong(f"level must be one of {', '.join(_LEVELS)}, not {level!r}")
    strict = level != "note"
    catch_all = entry.flag("catch_all")
    try:
        return Fault(
            id=entry.id,
            cause=entry.text("cause"),
            mend=entry.texts("mend"),
            source=entry.text("source"),
            when=tuple(
                tuple(
                    compile_pattern(f"!{text}" if catch_all and text[0] not in "!~@+" else text, strict)
                    for text in every
                )
                for every in entry.lists_of_texts("when")
            ),
            unless=tuple(compile_pattern(text) for text in entry.texts("unless", ())),
            hides=entry.texts("hides", ()),
            level=level,
            rank=entry.whole("rank", default=60, low=0, high=100),
            catch_all=catch_all,
            passes=entry.flag("passes"),
            confidence=entry.number("confidence", default=0.7, low=0.01, high=1.0),
            decide=entry.texts("decide", ()),
        )
    except PatternError as error:
        raise entry.wrong(str(error)) from error


class PatternError(ValueError):
    """A pattern that means nothing."""


def compile_pattern(text: str, strict: bool = False) -> Pattern:
    """Read one pattern of the data file: text with `*`, `<n>`, `||`, `^`, `~`, `!`, `#code`, or a `@reading`."""
    whole = text
    anywhere, text = text.startswith("~"), text.removeprefix("~")
    strict, text = _strict(text, strict)
    if text.startswith("@") and " || " not in text:
        version = re.fullmatch(r"@([\w-]+)\s*([<>=!]=?\s*\S+)", text)
        if version:
            return Pattern(text, (), version=(version[1], version[2]))
        return Pattern(text, (), measures=(text[1:],))
    if text.startswith("@"):
        return Pattern(text, (), measures=tuple(each.strip()[1:] for each in text.split(" || ")))
    alternatives = []
    for alternative in text.lower().split(" || "):
        alternative = alternative.strip()
        if alternative.startswith("#"):
            code = re.escape(alternative[1:])
            alternatives.append((alternative[1:], re.compile(rf"{_CODE}{code}(?!\d)")))
            continue
        anchored = alternative.startswith("^")
        ends = alternative.endswith("$")
        alternative = alternative.removeprefix("^").removesuffix("$")
        pieces = [piece for piece in re.split(r"\*|<n>", alternative) if piece]
        if not pieces:
            raise PatternError(f"a pattern without text: {text!r}")
        body = ".*?".join(_numbered(part) for part in alternative.split("*"))
        if re.fullmatch(r"[a-z]{2}\d{4,5}|[a-z]\d{5}", alternative):
            body = rf"(?<![a-z0-9]){body}(?!\d)"
        if anchored:
            body = _LINE_START + body
        if ends:
            body += r"\s*(?m:$)"
        hint = max((piece.strip() for piece in pieces), key=len)
        alternatives.append((hint, re.compile(body)))
    return Pattern(whole, tuple(alternatives), strict=strict, anywhere=anywhere)


def _strict(text: str, alarm: bool) -> tuple[bool, str]:
    """Whether lines of mild levels don't count, and the pattern without its mark.

    Alarms don't rest on an import that failed on such a line: those are optional.
    """
    if text[:1] in ("!", "+"):
        return text[0] == "!", text[1:]
    return alarm and any(words in text.lower() for words in _IMPORT), text


def _numbered(part: str) -> str:
    return r"\d+".join(re.escape(piece) for piece in part.split("<n>"))
