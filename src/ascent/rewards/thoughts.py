"""What a reasoning model thinks is no answer: its marked thoughts are left out before a program is looked for.

Marks are those that models in use write: `<think>`, `<thinking>`, `<thought>`, `<reasoning>`, `<seed:think>`, each with
its closing tag; `[THINK]` ... `[/THINK]`; `<|begin_of_thought|>` ... `<|end_of_thought|>`. A mark within quotes or
backticks is only spoken of, one within a fenced block that is closed again is code, and an opening mark begins a line.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from ascent.rewards.fences import closed_fences

_MARK = re.compile(
    r"<(?P<closes>/?)(?P<tag>think|thinking|thought|reasoning|seed:think)>"
    r"|\[(?P<closes_square>/?)(?P<square>THINK)\]"
    r"|<\|(?P<side>begin|end)_of_thought\|>",
    re.IGNORECASE,
)
_FENCE_TICKS = re.compile("`{3,}")  # no quotes
_ANY = ""  # the name of a thought that the prompt opened, with whichever mark
_QUOTES = "\"'`"
_QUOTE = re.compile(f"[{_QUOTES}]")
_PROMPT_END = 200  # characters in which a mark that ends a prompt is looked for


@dataclass(frozen=True, slots=True)
class _Mark:
    start: int
    end: int
    name: str
    opens: bool
    in_fence: bool


def without_thoughts(completion: str, *, opened: bool = False) -> str:
    """The completion's answer: what stands outside of its thoughts; "" while it is still thinking.

    With `opened` the prompt has opened the thought already, as some chat templates do; a closing mark that nothing
    opened says the same. What stands between two closing marks is thought too, as models nest their marks and speak of
    them. A thought that nothing closes goes on to the end.
    """
    marks = list(_marks(completion))
    outside = [mark for mark in marks if not mark.in_fence]
    closings = _Closings(marks, len(completion))
    end = len(completion.rstrip())
    answer: list[str] = []
    at, closed = 0, False
    if opened or (outside and not outside[0].opens):
        at, closed = closings.after(0, _ANY), True
    for mark in outside:
        if mark.start < at:
            continue
        if mark.opens:
            answer.append(completion[at : mark.start])
            at, closed = closings.after(mark.end, mark.name), True
        elif mark.end < end:
            at = mark.end
        elif closed:  # a last closing mark with nothing after it: a slip, the answer stands before it
            answer.append(completion[at : mark.start])
            at = mark.end
    return "".join((*answer, completion[at:]))


class _Closings:
    """Finds where a thought ends. A mark in a draft's fence closes it only where no other does."""

    def __init__(self, marks: list[_Mark], length: int) -> None:
        self._length = length
        self._marks: dict[tuple[str, bool], list[_Mark]] = {}
        for mark in marks:
            if not mark.opens:
                for name in (mark.name, _ANY):
                    self._marks.setdefault((name, mark.in_fence), []).append(mark)

    def after(self, at: int, name: str) -> int:
        """The end of the closing mark after `at`; the end of the text where there is none."""
        for in_fence in (False, True):
            marks = self._marks.get((name, in_fence), [])
            place = bisect_left(marks, at, key=lambda mark: mark.start)
            if place < len(marks):
                return marks[place].end
        return self._length


def opens_thought(prompt: str) -> bool:
    """Whether a prompt ends with a mark that opens a thought, so that its completion begins within one."""
    found = list(_MARK.finditer(prompt, max(0, len(prompt) - _PROMPT_END)))
    return bool(found) and _opens(found[-1]) and not prompt[found[-1].end() :].strip()


def _marks(text: str) -> Iterator[_Mark]:
    spans = closed_fences(text)
    span = next(spans, None)
    end = 0
    while found := _MARK.search(text, end):  # lines without a mark are passed over
        start = text.rfind("\n", end, found.start()) + 1 or end
        end = text.find("\n", found.end()) + 1 or len(text)
        for match in _unquoted(text[start:end]):
            while span is not None and span[1] <= start:
                span = next(spans, None)
            in_fence = span is not None and span[0] < start
            name = (match["tag"] or match["square"] or "of_thought").lower()
            yield _Mark(start + match.start(), start + match.end(), name, _opens(match), in_fence)


def _unquoted(line: str) -> Iterator[re.Match[str]]:
    """The marks of a line that aren't only spoken of; those that open stand at its beginning, or after another."""
    quote: str | None = None
    at = 0
    line = _FENCE_TICKS.sub(lambda ticks: " " * len(ticks[0]), line)
    last = {quote: line.rfind(quote) for quote in _QUOTES}
    for match in _MARK.finditer(line):
        for found in _QUOTE.finditer(line, at, match.start()):
            character, place = found[0], found.start()
            if quote is None and not (character == "'" and line[place - 1 : place].isalpha()):
                quote = character  # an apostrophe within a word is none
            elif character == quote:
                quote = None
        is_quoted = quote is not None and last[quote] >= match.end()
        if not is_quoted and not (_opens(match) and line[at : match.start()].strip()):
            yield match
        at = match.end()


def _opens(match: re.Match[str]) -> bool:
    if match["side"]:
        return match["side"].lower() == "begin"
    return not (match["closes"] or match["closes_square"])
