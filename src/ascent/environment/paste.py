"""Undo what a paste does to a log: colours, HTML escapes, wrapped lines, letters O where a screenshot's zeros were."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from ascent.environment.log_scan import Line

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\x1b\][^\x07]*\x07|\[(?:[01];)?3[0-7]m|\[0m")
_ENTITY = re.compile(r"&(?:gt|lt|amp|quot|apos|nbsp|#\d{1,4}|#x[0-9a-fA-F]{1,4});")
# A status code or a vendor's code in which a zero was read as a letter.
_MISREAD = re.compile(
    r"(?<![A-Za-z0-9])(?=[0-9O]*O)[0-9][0-9O]{5}(?![A-Za-z0-9])|(?<![A-Za-z0-9])E[A-Z](?=[0-9Oo]*[Oo])[0-9Oo]{4}(?![A-Za-z0-9])"
)
_NARROWEST, _WIDEST = 50, 200
_MOST_JOINED = 12
# A line that begins a message: it isn't the rest of the one above.
_FRESH = re.compile(
    r"\s*(?:\[|\(|\{|\d{4}-\d\d|\d\d[:-]\d\d|[EWI]\d{4} |File \"|Traceback"
    r"|(?:INFO|DEBUG|WARNING|WARN|ERROR|FATAL|CRITICAL)\b"
    r"|[\w.]*(?:Error|Exception)\s*:|\||\+[-=]|#|\$|E[A-Z]\d{4})"
)


def repair(lines: Sequence[Line]) -> list[Line]:
    """The lines as they were before the paste, in order; what was one line before it was wrapped comes in addition."""
    mended = [Line(line.number, unescape(line.text), line.last) for line in lines]
    joined = list(_unwrapped(mended))
    return sorted([*mended, *joined], key=lambda line: line.number) if joined else mended


def unescape(text: str) -> str:
    """A line without colours and HTML escapes, with zeros in its codes."""
    if "\x1b" in text or ("m" in text and "[" in text):
        text = _ANSI.sub("", text)
    if "&" in text and _ENTITY.search(text):
        text = html.unescape(text)
        text = html.unescape(text) if _ENTITY.search(text) else text
    if "O" in text or "o" in text:
        text = _MISREAD.sub(lambda match: match[0][:2] + match[0][2:].replace("O", "0").replace("o", "0"), text)
    return text


def _unwrapped(lines: Sequence[Line]) -> Iterator[Line]:
    width = max((len(line.text) for line in lines), default=0)
    if not _NARROWEST <= width <= _WIDEST:
        return
    index = 0
    while index < len(lines):
        run = [lines[index]]
        while (
            index + len(run) < len(lines)
            and len(run) < _MOST_JOINED
            and _goes_on(run[-1], lines[index + len(run)], width)
        ):
            run.append(lines[index + len(run)])
        if len(run) > 1:
            head = run[0]
            yield Line(head.number, " ".join(line.text.strip() for line in run), head.last)
            yield Line(head.number, "".join(line.text for line in run), head.last)
        index += len(run)


def _goes_on(line: Line, following: Line, width: int) -> bool:
    """Whether the next line holds the rest of this one: it follows at once, and its first word had no room here."""
    if following.number != line.number + 1 or (_FRESH.match(following.text) and len(line.text) < width):
        return False
    word = following.text.split(" ", 1)[0] if following.text[:1] != " " else ""
    return (bool(word) and len(line.text) + 1 + len(word) > width) or len(line.text) == width
