"""Finds the program in a completion: fenced blocks, an unclosed fence, chat around code, indented code, raw code.
What a reasoning model thinks before it answers is left out."""

from __future__ import annotations

import re
import textwrap

from ascent.rewards.fences import fenced_blocks
from ascent.rewards.longest_program import longest_program, parses
from ascent.rewards.thoughts import without_thoughts

_CODE_START = re.compile(
    r"^(def |class |import |from \w|async def |@\w|if __name__|#include|fn |use |int main)", re.MULTILINE
)
_AT_MARGIN = re.compile(r"^[^ \t\n]", re.MULTILINE)
_BLANK = re.compile(r"^[ \t]+$", re.MULTILINE)
_ALIASES = {
    "python": ("python", "py", "python3", "py3"),
    "c": ("c",),
    "cpp": ("cpp", "c++", "cc", "cxx"),
    "rust": ("rust", "rs"),
}


def extract_program(
    completion: str,
    *,
    language: str = "python",
    prefix: str = "",
    entry_point: str | None = None,
    in_fence: bool = False,
    in_thought: bool = False,
) -> str:
    """The source that a completion proposes; "" when there is none.

    `prefix` is what stands above the completion in the program: a function's head that the prompt ended with, or
    imports and helpers. A fenced block that defines `entry_point` takes the place of the head but not of what stands
    above it. Of several fenced blocks the last one that defines `entry_point` is taken, else the last one in the task's
    language, else the last one that names no language: models explain first and answer last. With `in_fence` the prompt
    has opened the fence already, and the program ends where it is closed. An unclosed fence runs to the end of the
    text. Marked thoughts (`<think>` and others) hold no program, whether they are closed or not; with `in_thought` the
    prompt has opened one.
    """
    if not in_fence:
        completion = without_thoughts(completion, opened=in_thought)
    if not completion.strip():
        return ""
    blocks = fenced_blocks(f"```{language}\n{completion}")[:1] if in_fence else fenced_blocks(completion)
    if blocks:
        code = _dedented(_choose(blocks, language, entry_point)).strip("\n") + "\n"
        head = _head_of(prefix, entry_point)
        if head is None or _defines(code, entry_point):
            return _joined(prefix if head is None else prefix[:head], code)
        return prefix + "\n" + textwrap.indent(code, "    ")
    if _head_of(prefix, entry_point) is not None:
        return prefix + _first_block(completion)
    return _joined(prefix, _raw(completion, language))


def _head_of(prefix: str, entry_point: str | None) -> int | None:
    """Where the unfinished function that the prefix ends with begins; None when it ends with whole statements."""
    if entry_point is None and not prefix.rstrip().endswith(":"):
        return None
    name = r"\w+" if entry_point is None else rf"{re.escape(entry_point)}\b"
    heads = list(re.finditer(rf"^(async )?def {name}", prefix, re.MULTILINE))
    return heads[-1].start() if heads else None


def _joined(above: str, code: str) -> str:
    return code if not above.strip() or not code.strip() else above.rstrip() + "\n\n\n" + code


def _choose(blocks: list[tuple[str, str]], language: str, entry_point: str | None) -> str:
    named = [code for name, code in blocks if name in _ALIASES.get(language, (language,))]
    unnamed = [code for name, code in blocks if not name]
    candidates = named or unnamed or [code for _, code in blocks]
    defining = [code for code in candidates if _defines(code, entry_point)]
    return (defining or candidates)[-1]


def _defines(code: str, entry_point: str | None) -> bool:
    return entry_point is not None and re.search(rf"\b(def|class)\s+{re.escape(entry_point)}\b", code) is not None


def _first_block(completion: str) -> str:
    """The part of a continuation that belongs to the function: up to the first line at column 0 that isn't code."""
    kept: list[str] = []
    for line in completion.split("\n"):
        if kept and line.strip() and not line[0].isspace() and not _CODE_START.match(line) and line[0] not in "#)]}":
            break
        kept.append(line)
    return "\n".join(kept).rstrip() + "\n"


def _dedented(text: str) -> str:
    """As `textwrap.dedent` makes it, which looks at each line even where one begins at the margin."""
    return _BLANK.sub("", text) if _AT_MARGIN.search(text) else textwrap.dedent(text)


def _raw(completion: str, language: str) -> str:
    """A program without fences: the text itself, or the code that stands in the middle of chat."""
    text = _dedented(completion).strip("\n")
    if not text.strip():
        return ""
    if language != "python" or parses(text):
        return text + "\n"
    start = _CODE_START.search(text)
    if start is None:
        return text + "\n"
    rest = text[start.start() :]
    return (longest_program(rest) or rest).rstrip() + "\n"
