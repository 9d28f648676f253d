"""What stands around a failure: the operator, the phase of the run, the buffer, and whose code it is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from ascent.environment.log_scan import Line

_DATA = tomllib.loads(resources.files("ascent.environment").joinpath("data", "context.toml").read_text("utf-8"))
_OPERATORS = tuple(re.compile("|".join(each["seen"])) for each in _DATA["operator"])
_PHASES = tuple((each["name"], re.compile("|".join(each["seen"]))) for each in _DATA["phase"])
_BUFFERS = tuple((each["name"], re.compile("|".join(each["seen"]))) for each in _DATA["buffer"])
_FRAME = re.compile(r"File \"([^\"]+)\", line (\d+), in (\S+)")
_SITE = re.compile(r"(?:site-packages|dist-packages|vllm-workspace|workspace|src)/([A-Za-z_]\w+)/(.*)$")


@dataclass(frozen=True)
class Context:
    """Where something failed, as far as the lines around say; empty where they don't."""

    operator: str = ""
    phase: str = ""
    buffer: str = ""
    frame: str = ""

    def __str__(self) -> str:
        parts = [f"operator {self.operator}" if self.operator else "", self.phase]
        parts.append(f"for {self.buffer}" if self.buffer else "")
        parts.append(f"raised in {self.frame}" if self.frame else "")
        return ", ".join(part for part in parts if part)


def read(lines: Sequence[Line], telling: str, *, memory: bool = False) -> Context:
    """The context of a failure from the lines around it; ``telling`` are the lines that it rests on.

    ``memory``: it is about memory, so the buffer that was wanted matters.
    """
    around = "\n".join(line.text[:600] for line in lines)
    buffer = next((name for name, pattern in _BUFFERS if pattern.search(telling)), "") if memory else ""
    if memory and not buffer:
        buffer = next((name for name, pattern in _BUFFERS if pattern.search(around)), "")
    return Context(_operator(telling) or _operator(around), _phase(telling, lines), buffer, _frame(lines))


def _operator(text: str) -> str:
    for pattern in _OPERATORS:
        if match := pattern.search(text):
            return next(group for group in match.groups() if group)
    return ""


def _phase(telling: str, lines: Sequence[Line]) -> str:
    frames = "\n".join(f"{match[1]} {match[3]}" for line in lines if (match := _FRAME.search(line.text)))
    for text in (frames, telling):
        found = next((name for name, pattern in _PHASES if pattern.search(text)), "")
        if found:
            return found
    return ""


def _frame(lines: Sequence[Line]) -> str:
    """The innermost frame of a package, as `vllm/v1/engine/core.py, in start`."""
    frames = [match for line in lines if (match := _FRAME.search(line.text))]
    for match in reversed(frames):
        if site := _SITE.search(match[1]):
            return f"{site[1]}/{site[2]}, in {match[3]}"
    return ""
