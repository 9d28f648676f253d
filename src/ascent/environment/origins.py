"""Whose error is it, and about what? Told from the frame that raised it, or from its words.

`data/messages.jsonl` knows where the messages of released packages are written (`scripts/message_index.py`);
`data/areas.toml` says what the parts of those packages do, and what to look at when they complain.
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from ascent.environment import signs
from ascent.environment.known_faults import Fault
from ascent.environment.log_scan import Line
from ascent.environment.log_view import Evidence, Log, short
from ascent.environment.matching import Match

_WORDS = 4
_WORD = re.compile(r"[a-z_]+")
_ROOT = r"(?:site-packages|dist-packages|workspace|src|opt|code|repo)/(?:[\w.-]+/){0,2}?"
_EXCEPTION = re.compile(r"\b(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt))\b:?\s*(?P<said>.*)")
_OTHERS = {"deepspeed", "peft", "ray", "verl", "swift", "llamafactory", "openrlhf", "areal"}
# What a message names: settings and the like.
_NAMED = re.compile(r"(?<![\w/.])(?:--[a-z][\w-]+|[a-zA-Z]+_[\w]*\w)(?![\w/(])")
_OF_CODE = {
    "IndexError",
    "KeyError",
    "ZeroDivisionError",
    "UnicodeDecodeError",
    "RecursionError",
    "NameError",
    "UnboundLocalError",
    "SyntaxError",
    "IndentationError",
    "TypeError",
    "AttributeError",
}
_BUILT_IN = {"IndexError", "KeyError", "ZeroDivisionError", "UnicodeDecodeError", "StopIteration", "NameError"}
_TWICE = re.compile(r"^(\w+)/\1/")
_FRAMES_ABOVE = 60
_RANK, _CONFIDENCE = 30, 0.4
_LONGEST_QUOTE = 220


@dataclass(frozen=True)
class Area:
    """A part of a package: what it does (``cause``) and what to look at (``mend``)."""

    id: str
    files: re.Pattern[str]
    cause: str
    mend: tuple[str, ...]


@functools.cache
def areas() -> tuple[Area, ...]:
    """The areas, special ones first."""
    data = resources.files("ascent.environment").joinpath("data", "areas.toml").read_text("utf-8")
    return tuple(
        Area(each["id"], re.compile("|".join(each["files"])), each["cause"], tuple(each["mend"]))
        for each in tomllib.loads(data)["area"]
    )


@functools.cache
def _written() -> dict[str, str]:
    """Checksum of four words -> the file in which a message with them is written."""
    data = resources.files("ascent.environment").joinpath("data", "messages.jsonl").read_text("utf-8")
    entries = (json.loads(line) for line in data.splitlines())
    return {mark: file for file, marks in entries for mark in marks.split()}


@functools.cache
def _frame() -> re.Pattern[str]:
    packages = {file.partition("/")[0] for file in _written().values()} | _OTHERS
    return re.compile(rf"File \"[^\"]*?{_ROOT}(?P<file>(?:{'|'.join(sorted(packages))})/[^\"]+\.py)\"")


def checksums(text: str) -> Iterator[str]:
    """The checksum of every four words in a row."""
    words = _WORD.findall(text.lower())
    for start in range(len(words) - _WORDS + 1):
        yield f"{zlib.crc32(' '.join(words[start : start + _WORDS]).encode()):08x}"


def file_of(message: str) -> str:
    """The file of a released package in which a message is written, empty where none is known."""
    written = _written()
    return next((written[mark] for mark in checksums(message[:1000]) if mark in written), "")


def told(log: Log, explained: Collection[int] = ()) -> list[Match]:
    """A catch-all for the first exception whose origin is known: what that part of the package complains about.

    ``explained`` are numbers of lines that an entry accounts for.
    """
    for line in signs.errors(log.lines, explained)[:20]:
        exception = _EXCEPTION.search(line.text)
        if exception is None:
            continue
        place = log.lines.index(line)
        file = _raised_in(log.lines[max(0, place - _FRAMES_ABOVE) : place])
        if not file and exception["name"] not in _BUILT_IN:
            file = file_of(exception["said"])
        own = not file and exception["name"] in _OF_CODE
        area = next((each for each in areas() if each.files.search(file)), None) if file or own else None
        if area is not None:
            fault = _as_fault(area, file, exception["name"], exception["said"])
            return [Match(fault, (Evidence(line.number, short(line.text)),), (place,))]
    return []


def _raised_in(lines: Sequence[Line]) -> str:
    """The file of the innermost frame that belongs to a known package."""
    for line in reversed(lines):
        if match := _frame().search(line.text):
            return _TWICE.sub(r"\1/", match["file"])
        if "Traceback (most recent call last)" in line.text:
            return ""
    return ""


def _as_fault(area: Area, file: str, name: str, said: str) -> Fault:
    quote = said.strip()[:_LONGEST_QUOTE]
    names = list(dict.fromkeys(_NAMED.findall(quote)))[:4]
    named = (f"it names {', '.join(names)}",) if names else ()
    return Fault(
        id=area.id,
        cause=f"{area.cause} {file or 'The exception'} says: {name.rpartition('.')[2]}{f': {quote}' if quote else ''}",
        mend=(*named, *area.mend),
        source=f"where the message is written: {file}" if file else "the exception's kind",
        when=(),
        rank=_RANK,
        catch_all=True,
        confidence=_CONFIDENCE,
    )
