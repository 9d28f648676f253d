"""Signs in a log: which lines look like errors, in whatever layer's form, and which show that the run did its work."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from importlib import resources

from ascent.environment.log_scan import Line, Scan

_BRACKETED = re.compile(r"\[[^\]\n]{0,200}\]:?|\([^)\n]{0,200}\)|[\w./-]{1,80}\.py:\d+\]")
_BEFORE_ERROR = re.compile(r"[\d:., |>*-]*(?:ERROR|E)?[\d:., |>*-]*(?:[A-Za-z]\w*: )?(?:[A-Za-z_][\w.]*\.)?")
_NAMED = re.compile(
    r"\b\w*(?:Error|Exception|Interrupt|Timeout)\b(?::|\s*$|\()"
    r"|(?<=\w\.)[A-Z]\w*(?:Invalid|Failed|Exceeded|NotFound|Denied|Refused|Unavailable|Exhausted|Corrupted|OutOfResources)\b:"
)
_SIGNS = tomllib.loads(resources.files("ascent.environment").joinpath("data", "signs.toml").read_text("utf-8"))
MILD = re.compile("|".join(_SIGNS["mild"]))
_FORM = re.compile("|".join(_SIGNS["error"]))
_ALWAYS = re.compile("|".join(_SIGNS["always"]))
_NOT = re.compile("|".join(_SIGNS["no_error"]), re.IGNORECASE)
_DONE = re.compile("|".join(_SIGNS["done"]), re.IGNORECASE)
_SERVES = re.compile("|".join(_SIGNS["serves"]), re.IGNORECASE)
_STEPS = re.compile("|".join(_SIGNS["steps"]), re.IGNORECASE)
_LONGEST_TRACEBACK = 60
# A service ends so whether it is well or not.
_SHUT_DOWN = re.compile(r"shut ?down|server process", re.IGNORECASE)
# A step that isn't the first shows that those before it went well.
_LATER_STEP = re.compile(
    r"\b(?:step|iteration|global_step)\b['\"]?[ :=]+0*(?:[2-9]|[1-9]\d+)\b.*(?:loss|reward|score|entropy|/)"
)


def errors(lines: Sequence[Line], skip: Iterable[int] = ()) -> list[Line]:
    """The lines that look like errors; those that name an exception first, as they say most.

    ``skip`` are numbers of lines that are accounted for.
    """
    known = set(skip)
    known |= _ignored(lines)
    found = [line for line in lines if line.number not in known and is_error(line.text)]
    return [line for line in found if _NAMED.search(line.text)] + [
        line for line in found if not _NAMED.search(line.text)
    ]


def _ignored(lines: Sequence[Line]) -> set[int]:
    """Numbers of the lines of tracebacks that Python says it ignores, as at the end of a process."""
    found: set[int] = set()
    inside = 0
    for line in lines:
        inside = _LONGEST_TRACEBACK if "Exception ignored in" in line.text else inside
        if inside:
            found.add(line.number)
            inside = 0 if _is_exception(line.text) and "ignored" not in line.text else inside - 1
    return found


def is_error(text: str) -> bool:
    """Whether a line states a failure and not one that was coped with."""
    text = text[:2400]
    if not (_FORM.search(text) or _is_exception(text)):
        return False
    return _ALWAYS.search(text) is not None or not coped_with(text.lower(), 0, len(text))


def coped_with(text: str, start: int, end: int) -> bool:
    """Whether a line (a piece of ``text``, in lower case) is of a mild level, or says that there was no error."""
    return bool(MILD.search(text, start, min(end, start + 200)) or _NOT.search(text, start, end))


def _is_exception(text: str) -> bool:
    """An exception's name where its message begins: after rank, process, level, time and module only."""
    name = _NAMED.search(text)
    return name is not None and _BEFORE_ERROR.fullmatch(_BRACKETED.sub(" ", text[: name.start()])) is not None


def end_of_work(scanned: Scan, after: int) -> Line | None:
    """A line near the log's end, and after line ``after``, that says that the work was done."""
    end = [line for line in scanned.end if line.number > after]
    return next((line for line in reversed(end) if _DONE.search(line.text) and not _SHUT_DOWN.search(line.text)), None)


def evidence_of_work(scanned: Scan, lines: Sequence[Line]) -> Line | None:
    """A line that shows that the run got somewhere: its end, an answer of the service, or steps that go on."""
    last = next((line for line in reversed(scanned.end) if _DONE.search(line.text)), None)
    if last is not None:
        return last
    for pattern in (_DONE, _SERVES):
        if found := next((line for line in lines if pattern.search(line.text[:2000])), None):
            return found
    steps = [line for line in lines if _STEPS.search(line.text[:2000])]
    later = next((line for line in steps if _LATER_STEP.search(line.text[:400])), None)
    if later is not None:
        return later
    going_on = len(steps) > 1 or (steps and steps[0].last > steps[0].number) or len(scanned.series) > 1
    return steps[-1] if steps and going_on else None
