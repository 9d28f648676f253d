"""Python's exceptions in a log: their name and message, the frames above them, and what the message names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ascent.environment.log_scan import Line

_EXCEPTION = re.compile(
    r"(?<![\w.])(?P<name>[A-Za-z_][\w.]{0,120}(?:Error|Exception|Interrupt|Timeout|Fault|Failure|StopIteration|SystemExit"
    r"|\.[A-Z]\w*(?:Invalid|Failed|Exceeded|NotFound|Denied|Refused|Unavailable|Exhausted|Corrupted|OutOfResources)))"
    r"\b:?\s*(?P<said>.*)"
)
_FRAME = re.compile(r"File \"(?P<file>[^\"]+)\",?(?: line (?P<line>\d+))?(?:, in (?P<function>\S+))?")
_BEGINS = "Traceback (most recent call last)"
# The prefix that a logger or Ray puts before each line of a traceback.
_PREFIX = re.compile(r"^(?:\[rank\d+\]:|\(\w+[^)]*\)|(?:ERROR|INFO|WARNING) [\d:. -]+(?:\[[^\]]*\]|[\w.]+:\d+\])|\s)+")
_MARKS = re.compile(r"^[\s^~]*$")
_FRAMES_ABOVE = 60
# What a message names: options, names with underscores, environment variables, classes, and what it quotes.
_QUOTED = re.compile(r"(?<![\w])['\"`]([\w][\w.:/=<>@+-]{0,50}[\w*])['\"`](?!\w)")
_IDENTIFIER = re.compile(
    r"(?<![\w/.])(?:--[a-z][\w-]+|[a-zA-Z]+_\w*\w|[A-Z][a-z0-9]+(?:[A-Z]\w*)+)(?![\w/(])"
    r"|(?<=not a valid )[A-Z]\w+|(?<=No module named )\w+"
)
_ATTRIBUTE = re.compile(r"(?<![\w])[A-Za-z][A-Za-z0-9]*_\w+")
_DULL = re.compile(r"NoneType|most_recent|object_at|__\w+__|most recent", re.IGNORECASE)
_MOST_NAMED = 5
# Exceptions that only pass on that something else failed.
_WRAPPERS = re.compile(
    r"(?:TrainingFailedError|RayTaskError|ChildFailedError|CalledProcessError|EngineDeadError|MultipleFailures"
    r"|ProcessExitedException|ProcessRaisedException|BrokenProcessPool|RayActorError|ActorDiedError|SystemExit"
    r"|RemoteException|WorkerCrashedError)$"
)
_LAUNCHERS = re.compile(r"torch/distributed/(?:run|launch|launcher|elastic)|accelerate/commands|/bin/\w+$")
_REFERS = re.compile(
    r"(?:previous|above|root cause|original) (?:error|exception|cause)|see root cause|error messages? above", re.I
)


@dataclass(frozen=True)
class Frame:
    """One frame of a traceback; ``code`` is the line of source under it, empty where the log doesn't show it."""

    file: str
    function: str = ""
    code: str = ""


@dataclass(frozen=True)
class Raised:
    """An exception. ``place`` is its line among the distinct ones; empty ``name``: a traceback that is cut."""

    place: int
    name: str
    said: str
    frames: tuple[Frame, ...] = ()

    @property
    def wraps(self) -> bool:
        """Whether it only says that something else failed."""
        if not self.name:
            return any(_LAUNCHERS.search(frame.file) for frame in self.frames)
        return bool(_WRAPPERS.search(self.name) or _REFERS.search(self.said))

    @property
    def names(self) -> tuple[str, ...]:
        """The settings, classes, options and files that message and raising line name, those of the message first."""
        return named(self.said, self.frames[-1].code if self.frames else "")


def named(said: str, code: str = "") -> tuple[str, ...]:
    """What a message names, and after it what the line of code that raised it does."""
    said = said[:600]
    found = [*_QUOTED.findall(said), *_IDENTIFIER.findall(said), *_ATTRIBUTE.findall(code)]
    kept = [name for name in dict.fromkeys(found) if not _DULL.search(name) and not name.replace(".", "").isdigit()]
    return tuple(kept[:_MOST_NAMED])


def at(lines: Sequence[Line], place: int) -> Raised | None:
    """The exception that a line states, with the frames above it; None when it states none."""
    match = _EXCEPTION.search(lines[place].text[:4000])
    if match is None:
        return None
    above = lines[max(0, place - _FRAMES_ABOVE) : place]
    return Raised(place, match["name"], match["said"].strip(), tuple(_frames(above)))


def cut_off(lines: Sequence[Line]) -> Raised | None:
    """The last traceback, where the log ends before it says which exception it was."""
    last = next((place for place in range(len(lines) - 1, -1, -1) if _FRAME.search(lines[place].text[:2000])), None)
    if last is None or any(_EXCEPTION.search(line.text[:4000]) for line in lines[last + 1 :]):
        return None
    frames = tuple(_frames(lines[max(0, last + 2 - _FRAMES_ABOVE) : last + 3]))
    return Raised(last, "", "", frames) if len(frames) > 1 else None


def _frames(lines: Sequence[Line]) -> Iterator[Frame]:
    """The frames of the last traceback among the lines, outermost first; lines that aren't of it may stand between."""
    start = max((index for index, line in enumerate(lines) if _BEGINS in line.text), default=-1) + 1
    found = [index for index in range(start, len(lines)) if _FRAME.search(lines[index].text)]
    for index in found:
        match = _FRAME.search(lines[index].text)
        assert match is not None
        yield Frame(match["file"], match["function"] or "", _code(lines, index + 1))
    if not found and start and start < len(lines):  # a traceback of which the paste lost the frames' heads
        yield Frame("", "", _code(lines, start))


def _code(lines: Sequence[Line], index: int) -> str:
    if index >= len(lines) or _FRAME.search(lines[index].text):
        return ""
    text = _PREFIX.sub("", lines[index].text[:400]).strip()
    return "" if _MARKS.match(text) or _BEGINS in text else text
