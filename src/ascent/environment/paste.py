"""Undo what a paste does to a log: colours, HTML escapes, wrapped lines, letters O where a screenshot's zeros were."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ascent.environment.log_scan import Line

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\x1b\][^\x07]*\x07|\[(?:[01];)?3[0-7]m|\[0m")
_QUOTED = re.compile(r"^\s*(?:> ?)+(?=\S)")
_ENTITY = re.compile(r"&(?:gt|lt|amp|quot|apos|nbsp|#\d{1,4}|#x[0-9a-fA-F]{1,4});")
# A status code or a vendor's code in which a zero was read as a letter.
_MISREAD = re.compile(
    r"(?<![A-Za-z0-9])(?=[0-9O]*O)[0-9][0-9O]{5}(?![A-Za-z0-9])|(?<![A-Za-z0-9])E[A-Z](?=[0-9Oo]*[Oo])[0-9Oo]{4}(?![A-Za-z0-9])"
)
_NARROWEST, _WIDEST = 40, 200
_MOST_JOINED = 12
_RAGGED = 8  # the width of text broken at words isn't known exactly: the longest line may be shorter
# A line that begins a message: it isn't the rest of the one above.
_FRESH = re.compile(
    r"\s*(?:\[(?:rank|ERROR|Error|INFO|WARN|FATAL|\d{4}-)|\(\w+[^)]*pid=|\{['\"]|\d{4}-\d\d-\d\d"
    r"|\d\d[-:]\d\d[ :]\d\d|[EWI]\d{4} "
    r"|(?:step|iter|iteration|epoch|global_step)\b[ :=]*\d"
    r"|File \"|Traceback|(?:INFO|DEBUG|WARNING|WARN|ERROR|FATAL|CRITICAL)\b"
    r"|[\w.]*(?:Error|Exception)\s*:|\||\+[-=]|#|\$)"
)


@dataclass(frozen=True)
class Mended:
    """A paste's lines as they were. ``lines`` holds every line, and in addition those that had been broken, whole;
    ``whole`` holds the whole ones in place of their pieces, ``pieces`` the lines as the log has them.
    """

    pieces: list[Line]
    lines: list[Line]
    whole: list[Line]


def repair(lines: Sequence[Line]) -> Mended:
    """The lines as they were before the paste, in order of the log."""
    mended = [Line(line.number, unescape(line.text), line.last) for line in lines]
    width = max((len(line.text) for line in mended), default=0)
    if not _NARROWEST <= width <= _WIDEST:
        return Mended(mended, mended, mended)
    extra: list[Line] = []
    whole: list[Line] = []
    for run in _runs(mended, width):
        head = run[0]
        if len(run) == 1:
            whole.append(head)
            continue
        spaced = Line(head.number, " ".join(line.text.strip() for line in run), head.last, len(run))
        exact = Line(head.number, "".join(line.text for line in run), head.last, len(run))
        extra += [spaced, exact]
        whole.append(exact if all(len(line.text) == width for line in run[:-1]) else spaced)
    return Mended(mended, sorted([*mended, *extra], key=lambda line: line.number), whole)


def unescape(text: str) -> str:
    """A line without quotation marks of a mail, colours and HTML escapes, with zeros in its codes."""
    if "\x1b" in text or ("m" in text and "[" in text):
        text = _ANSI.sub("", text)
    if "&" in text and _ENTITY.search(text):
        text = html.unescape(text)
        text = html.unescape(text) if _ENTITY.search(text) else text
    if text.lstrip()[:1] == ">":
        text = _QUOTED.sub("", text)
    if "O" in text or "o" in text:
        text = _MISREAD.sub(_with_zeros, text)
    return text


def _with_zeros(match: re.Match[str]) -> str:
    kept = 2 if match[0][0] == "E" else 0  # the family's letters
    return match[0][:kept] + match[0][kept:].replace("O", "0").replace("o", "0")


def _runs(lines: Sequence[Line], width: int) -> Iterator[list[Line]]:
    """The lines in runs that had been one line each."""
    index = 0
    while index < len(lines):
        run = [lines[index]]
        while index + len(run) < len(lines) and len(run) < _MOST_JOINED:
            following = lines[index + len(run)]
            if not _goes_on(run[-1], following, width):
                break
            run.append(following)
        yield run
        index += len(run)


def _goes_on(line: Line, following: Line, width: int) -> bool:
    """Whether the next line holds the rest of this one: it follows at once, and its first word had no room here."""
    if following.number != line.number + 1 or _FRESH.match(following.text):
        return False
    if len(line.text) == width:
        return True
    word = following.text.split(" ", 1)[0]
    return bool(word) and len(line.text) + 1 + len(word) > width - _RAGGED
