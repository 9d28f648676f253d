"""Whose error is it, and about what? Told from the frame that raised it, its exception's module, or its words.

`data/messages.jsonl` knows where the messages of released packages are written (`scripts/message_index.py`);
`data/areas.toml` says what the parts of packages and of Python's library do, and what to look at when they complain.
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib import resources

from ascent.environment import exceptions, signs
from ascent.environment.exceptions import Raised
from ascent.environment.known_faults import Fault
from ascent.environment.log_view import Evidence, Log, short
from ascent.environment.matching import Match

_WORDS = 4
_WORD = re.compile(r"[a-z_]+")
_ROOT = re.compile(r"(?:site-packages|dist-packages)/(?P<file>(?P<package>[A-Za-z_]\w*)(?:/[^\"]+)?\.(?:py|pyx|so))")
_CLONE = r"(?:workspace|src|opt|code|repo|home|root|data|mnt)/(?:[\w.-]+/){0,4}?"
_STANDARD = re.compile(r"/lib(?:64)?/python3\.\d+/(?P<file>(?!site-packages|dist-packages)[\w/]+\.py)")
_MODULE = re.compile(r"^(?P<package>[a-z]\w+)\.[\w.]*[A-Z]\w*$")
_OTHERS = {"deepspeed", "peft", "ray", "verl", "swift", "llamafactory", "openrlhf", "areal", "roll", "slime"}
_OTHERS |= {"mindspeed", "mindspeed_llm", "mindspeed_rl", "megatron", "sglang", "rllm", "openmind", "datasets"}
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
_RANK, _WRAPPER_RANK = 30, 10
_CONFIDENCE, _LEAST_CONFIDENCE = 0.4, 0.3
_LONGEST_QUOTE = 220
_ASSERTION = (
    "a bare assertion is a fault of that release, or of a rare combination of features: leave them out one by one "
    "(prefix caching, offload, connectors, speculative decoding), try a newer release, report it"
)
_MOST_LOOKED_AT = 20


@dataclass(frozen=True)
class Area:
    """A part of a package: what it does (``cause``) and what to look at (``mend``)."""

    id: str
    files: re.Pattern[str]
    cause: str
    mend: tuple[str, ...]


@functools.cache
def areas(table: str = "area") -> tuple[Area, ...]:
    """The areas, special ones first; ``standard`` for those of Python's own library."""
    data = resources.files("ascent.environment").joinpath("data", "areas.toml").read_text("utf-8")
    return tuple(
        Area(each["id"], re.compile("|".join(each["files"])), each["cause"], tuple(each["mend"]))
        for each in tomllib.loads(data)[table]
    )


@functools.cache
def _written() -> dict[str, str]:
    """Checksum of four words -> the file in which a message with them is written."""
    data = resources.files("ascent.environment").joinpath("data", "messages.jsonl").read_text("utf-8")
    entries = (json.loads(line) for line in data.splitlines())
    return {mark: file for file, marks in entries for mark in marks.split()}


@functools.cache
def _clone() -> re.Pattern[str]:
    packages = {file.partition("/")[0] for file in _written().values()} | _OTHERS
    return re.compile(rf"{_CLONE}(?P<file>(?P<package>{'|'.join(sorted(packages))})/[^\"]+\.py)")


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
    """A catch-all for the first exception of which something can be told; those that only pass on a failure last.

    ``explained`` are numbers of lines that an entry accounts for.
    """
    lines = signs.errors(log.lines, explained)[:_MOST_LOOKED_AT]
    found = [raised for line in lines if (raised := exceptions.at(log.lines, log.lines.index(line)))]
    found.sort(key=lambda raised: raised.wraps)
    if not found and (cut := exceptions.cut_off(log.lines)) and log.lines[cut.place].number not in explained:
        found = [cut]
    for raised in found:
        if fault := _about(raised):
            line = log.lines[raised.place]
            return [Match(fault, (Evidence(line.number, short(line.text)),), (raised.place,))]
    return []


def named_at(log: Log, place: int) -> tuple[str, ...]:
    """What the exception at a place names, if there is one: packages, settings, classes."""
    raised = exceptions.at(log.lines, place)
    return raised.names if raised else ()


def _about(raised: Raised) -> Fault | None:
    """The reading of an exception: by its package's part, by what Python's library did, or by the package alone."""
    file, package = _raised_in(raised)
    if not file and raised.name not in _BUILT_IN and raised.said:
        file = file_of(raised.said)
    own = not file and not package and raised.name in _OF_CODE
    area = next((each for each in areas() if each.files.search(file)), None) if file or own else None
    standard = _in_standard_library(raised)
    if raised.name and area is not None:
        return _as_fault(area, file, raised, _CONFIDENCE)
    if standard is not None:
        return _as_fault(standard, package or file, raised, _CONFIDENCE)
    if package:
        return _as_fault(_part_of(package, raised), file or package, raised, _LEAST_CONFIDENCE)
    if area is not None:
        return _as_fault(area, file, raised, _CONFIDENCE)
    return _as_fault(_nobodys(raised), "", raised, _LEAST_CONFIDENCE) if raised.names else None


def _raised_in(raised: Raised) -> tuple[str, str]:
    """File and package of the innermost frame that belongs to one, else of the exception's own module."""
    for frame in reversed(raised.frames):
        if match := _ROOT.search(frame.file) or _clone().search(frame.file):
            return _TWICE.sub(r"\1/", match["file"]), match["package"]
    module = _MODULE.match(raised.name)
    return "", module["package"] if module and module["package"] not in ("builtins", "exceptions") else ""


def _in_standard_library(raised: Raised) -> Area | None:
    """What Python's own library did when it failed, if the innermost frame is one of its."""
    match = _STANDARD.search(raised.frames[-1].file) if raised.frames else None
    if match is None:
        return None
    return next((each for each in areas("standard") if each.files.search(match["file"])), None)


def _part_of(package: str, raised: Raised) -> Area:
    what = "failed" if raised.name else "was at work when the log ends: its last frames are there, the error isn't"
    return Area(
        "package-raises-an-error",
        re.compile(""),
        f"The package {package} {what}; no entry knows this error.",
        (
            f"pip show {package}: does its version fit what the calling package requires? upgrade it, or the caller, "
            "or take the older release of the one that was changed last",
            f"the value or file that was given to {package} in the last frame of your own code",
            f"{package}'s release notes and issue tracker with the words of the message",
        ),
    )


def _nobodys(raised: Raised) -> Area:
    return Area(
        "exception-names-its-cause",
        re.compile(""),
        "A check of the program failed, or a value was refused; the frames that would say whose are missing here.",
        (
            "look those names up in the command line, the configuration and the calling code",
            "the lines above the message",
        ),
    )


def _as_fault(area: Area, file: str, raised: Raised, confidence: float) -> Fault:
    quote = raised.said[:_LONGEST_QUOTE]
    names = raised.names
    named = (f"it names {', '.join(names)}",) if names else ()
    if raised.name.endswith("AssertionError") and not quote:
        named = (*named, _ASSERTION)
    about = f" It is about {', '.join(names)}." if names else ""
    said = f" {file or 'The exception'} says: {raised.name.rpartition('.')[2]}{f': {quote}' if quote else ''}"
    return Fault(
        id=area.id,
        cause=f"{area.cause}{about}{said if raised.name else f' The last frame is in {file}.' if file else ''}",
        mend=(*named, *area.mend),
        source=f"where the message is written: {file}" if file else "the exception's kind",
        when=(),
        rank=_WRAPPER_RANK if raised.wraps else _RANK,
        catch_all=True,
        confidence=confidence,
    )
