"""Errors that a program states under its own name: command-line tools, the scheduler, CANN's and NCCL's native parts.

`data/programs.toml` says what each does and what to look at when it complains.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

from ascent.environment import signs
from ascent.environment.exceptions import named
from ascent.environment.known_faults import Fault
from ascent.environment.log_view import Evidence, Log, short
from ascent.environment.matching import Match

# `srun: error: said`, `docker: Error response: said`, `bash: line 3: said`, `train.py: error: said`.
_TOOL = re.compile(
    r"^[\s\W\d]*(?:\[\w+\]\s*)?(?P<name>[A-Za-z][\w.+-]{1,30}):(?:\s*line \d+:|\s*fatal:?|\s*FATAL:?)?\s*"
    r"(?:\w+: )?(?:error|fatal|Error)\b[^:\n]{0,40}:\s*(?P<said>\S.*)"
)
_CANN = re.compile(r"\[(?:ERROR|FATAL|EVENT)\]\s*(?P<name>[A-Z][A-Z_]{1,14})\(\d+[^)]*\)\s*:?(?P<said>.*)")
_NCCL = re.compile(r"\b(?P<name>NCCL) WARN (?P<said>\S.*)")
_STAMPS = re.compile(r"^[\d:.\s-]+|\[[\w.]+:\d+\]|\[[^\]]*hccl_world_group[^\]]*\]|^\s*\d+\s")
_PYTHON = re.compile(r"Error|Exception|Traceback")
_NOT_PROGRAMS = {"error", "warning", "info", "fatal", "note", "http", "https", "e", "caused", "detail", "cause"}
_RANK, _CONFIDENCE = 29, 0.4
_LONGEST_QUOTE = 220


@dataclass(frozen=True)
class Program:
    """What a program or a native part does (``cause``: what its complaint means) and what to look at."""

    id: str
    names: frozenset[str]
    cause: str
    mend: tuple[str, ...]


@functools.cache
def known() -> tuple[Program, ...]:
    """The programs that the data describe."""
    data = resources.files("ascent.environment").joinpath("data", "programs.toml").read_text("utf-8")
    return tuple(
        Program(each["id"], frozenset(each["names"]), each["cause"], tuple(each["mend"]))
        for each in tomllib.loads(data)["program"]
    )


def told(log: Log, explained: set[int]) -> list[Match]:
    """A catch-all for the first line in which a program states an error under its own name."""
    for place, name, said in _stated(log):
        line = log.lines[place]
        if line.number in explained:
            continue
        program = next((each for each in known() if name.lower() in each.names), None)
        fault = _as_fault(program or _unknown(name), name, said)
        return [Match(fault, (Evidence(line.number, short(line.text)),), (place,))]
    return []


def _stated(log: Log) -> Iterator[tuple[int, str, str]]:
    """(place, program, what it says) of each line that is an error of a program."""
    for place, line in enumerate(log.lines):
        text = line.text[:2000]
        match = _NCCL.search(text) or _CANN.search(text) or _TOOL.match(text)
        if match is None or match["name"].lower() in _NOT_PROGRAMS or _PYTHON.search(match["name"]):
            continue
        if signs.is_error(text) or match.re is _TOOL:
            yield place, match["name"], _STAMPS.sub("", match["said"]).strip()


def _unknown(name: str) -> Program:
    return Program(
        "program-refuses",
        frozenset(),
        f"The program {name} stopped with an error of its own.",
        (f"{name} --help and its documentation for what the message names; {name} --version",),
    )


def _as_fault(program: Program, name: str, said: str) -> Fault:
    names = named(said)
    about = f" It is about {', '.join(names)}." if names else ""
    return Fault(
        id=program.id,
        cause=f"{program.cause}{about} {name} says: {said[:_LONGEST_QUOTE]}",
        mend=program.mend,
        source=f"{name}'s own message",
        when=(),
        rank=_RANK,
        catch_all=True,
        confidence=_CONFIDENCE,
    )
