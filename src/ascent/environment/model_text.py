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
_LONGEST_BLOCK = 400


def foreign(lines: Sequence[Line]) -> set[int]:
    """Indices of the lines that belong to the model's text."""
    found: set[int] = set()
    block = 0
    table = False
    for index, line in enumerate(lines):
        text = line.text[:4000]
        if table:
            found.add(index)
            table = not _TABLE_END.match(text)
            continue
        if block and not _OWN.match(text):
            found.add(index)
            block = 0 if _CLOSING.search(text) else block - 1
            continue
        block = 0
        if _TABLE_HEAD.match(text) and "┃" in text:
            table = True
            found.add(index)
        elif heading := _HEADING.match(text):
            found.add(index)
            block = _LONGEST_BLOCK
            if heading["rest"][:1] in "'\"[" and heading["rest"].rstrip()[-1:] in "'\"]":
                block = 0  # a quoted text that ends in its line
        elif _OPENING.match(text):
            found.add(index)
            block = 0 if _CLOSING.search(text) else _LONGEST_BLOCK
        elif _FIELD.search(text):
            found.add(index)
    return found
