"""Which lines of a log are text that the model wrote or read, not the run's own: completions, prompts, programs.

Their tracebacks and errors say nothing about the run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ascent.environment.log_scan import Line

_WHAT = (
    r"(?:completion|generated[ _]text|generation|response|model[ _]output|prompt|assistant|answer|solution|program"
    r"|student|candidate)s?"
)
# "Completion 3: ...": a heading of the model's text, after nothing but time, level and rank.
_HEADING = re.compile(
    rf"\s*(?:[\W\d]|INFO|DEBUG|rank|step|sample|example|print(?:ed)?|the|\w+\.py){{0,60}}\b{_WHAT}\b(?:\s*\[?#?\d+\]?)?['\"]?\s*[:=]\s*(?P<rest>.*)",
    re.IGNORECASE,
)
# verl's "[response] ...", after rank and process.
_TAGGED = re.compile(rf"\s*(?:\([^)\n]{{0,80}}\)|\W){{0,3}}\s*\[{_WHAT}\]\s*:?\s*(?P<rest>.*)", re.IGNORECASE)
_FIELD = re.compile(
    r"['\"](?:completions?|prompts?|response|content|text|program|stdout|stderr|solution|answer)['\"]\s*:\s*['\"\[]"
)
_OPENING = re.compile(r"\s*(?:<think>|<answer>|<\|im_start\|>|<\|assistant\|>)")
_CLOSING = re.compile(r"(?:</answer>|<\|im_end\|>)\s*$")
# A line that the run itself writes: time, level, rank or a row of metrics.
_OWN = re.compile(
    r"\s*(?:\(\w+[^)]*pid=|\[rank\d|\[?\d{4}-\d\d-\d\d|\[?\d\d[-/:]\d\d[ :]|(?:INFO|DEBUG|WARNING|ERROR|CRITICAL)\b[ :]"
    r"|\[(?:INFO|WARNING|ERROR)\]"
    r"|\{'loss'|\{\"loss\"|\d+%\||[EWI]\d{4} \d\d:|E[A-Z]\d{4}:|step[ :=]+\d+\b.*(?:loss|reward))"
)
_TABLE_HEAD = re.compile(r"[┃│|].*\b(?:Prompt|Completion)\b")
_TABLE_END = re.compile(r"\s*[└╰+][─━=-]{3,}")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception)\b")  # may be the run's own, with a quoted path at its end
_FENCE = "```"
_LONGEST_BLOCK = 400


def foreign(lines: Sequence[Line]) -> set[int]:
    """Numbers of the lines that belong to the model's text.

    A text of several lines counts as far as its end is seen: the closing quote, fence or mark, an empty line, or a line
    of the run's own. Of one that never ends, only the heading is left out: an error below it may be the run's.
    """
    found: set[int] = set()
    index = 0
    while index < len(lines):
        text = lines[index].text[:4000]
        if _TABLE_HEAD.match(text) and "┃" in text:
            end = _table_end(lines, index)
            found.update(range(index, end))
            index = max(end, index + 1)
            continue
        heading = _HEADING.match(text) or _TAGGED.match(text)
        if heading or _OPENING.match(text):
            found.add(index)
            rest = heading["rest"].strip() if heading else text.strip()
            end = _text_end(lines, index + 1, rest)
            found.update(range(index + 1, end))
            index = max(end, index + 1)
            continue
        if _FIELD.search(text):
            found.add(index)
        index += 1
    return {lines[index].number for index in found}


def _table_end(lines: Sequence[Line], start: int) -> int:
    for index in range(start, min(len(lines), start + _LONGEST_BLOCK)):
        if _TABLE_END.match(lines[index].text):
            return index + 1
    return start


def _text_end(lines: Sequence[Line], start: int, rest: str) -> int:
    """Index after the last line of a text that begins before ``start``; ``start`` where it has one line or no end."""
    quote = rest[:1] if rest[:1] in ("'", '"') else ""
    if rest and not _opens(rest, quote):
        return start
    marked = bool(_OPENING.match(rest))
    fenced = rest.count(_FENCE) % 2 == 1
    for index in range(start, min(len(lines), start + _LONGEST_BLOCK)):
        text = lines[index].text[:4000].rstrip()
        if _OWN.match(text):
            return index
        fenced ^= text.count(_FENCE) % 2 == 1
        if marked and _CLOSING.search(text):
            return index + 1
        if quote and text.rstrip(",]})").endswith(quote):
            return start if _EXCEPTION.match(text) else index + 1
        if not (text or fenced or marked or quote) and index > start:
            return index
    return start


def _opens(rest: str, quote: str) -> bool:
    """Whether a heading's text goes on below: an open quote, fence or mark."""
    if quote and (len(rest) == 1 or not rest.rstrip(",]})").endswith(quote)):
        return True
    return rest.count(_FENCE) % 2 == 1 or (bool(_OPENING.match(rest)) and not _CLOSING.search(rest))
