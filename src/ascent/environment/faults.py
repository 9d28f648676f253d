"""Log text -> known faults, the primary cause first (`known_faults.py` says what is known)."""

from __future__ import annotations

import functools
import gzip
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Literal

from ascent.environment import reports
from ascent.environment.finding import Level
from ascent.environment.known_faults import Fault, Pattern, load
from ascent.environment.log_scan import Line, Scan, scan, scan_text
from ascent.environment.measures import measure
from ascent.environment.versions import inside

Verdict = Literal["fault", "healthy", "unknown"]
_LOG_NAMES = re.compile(r"\.(?:log|txt|err|out|stderr|stdout|jsonl)(?:\.\d+)?(?:\.gz)?$|^(?:nohup\.out|stderr|stdout)$")
_PIECE, _OVERLAP = 2_000, 400
_CRASH = re.compile(r"Traceback \(most recent call last\)|Aborted \(core dumped\)|Segmentation fault")
_ERROR_NAME = re.compile(r"\b\w*(?:Error|Exception)(?::|\s*$)")
_BRACKETED = re.compile(r"\[[^\]\n]{0,200}\]:?|\([^)\n]{0,200}\)")
_BEFORE_ERROR = re.compile(r"[\d:., -]*(?:ERROR)?[\d:., -]*(?:[A-Za-z_][\w.]*\.)?")
# Lines of these levels report an optional import that failed; only a note may rest on such a line.
_MILD = re.compile(
    r"\b(?:info|debug|warning|warn)\b\W{0,3}[\d\[]|\[(?:info|debug|warning|warn)\W"
    r"|(?m:^)\W*(?:info|debug|warning):"
)
_MAY_STATE_VERSION = re.compile(r"\d\.\d", re.A)
_NAMED_ERROR = re.compile(r"\b\w*(?:Error|Exception)\b\s*:|Aborted|Segmentation fault")


@dataclass(frozen=True)
class Evidence:
    """A line that supports a diagnosis."""

    line: int
    text: str


@dataclass(frozen=True)
class Diagnosis:
    """A recognised fault. ``role`` tells the primary cause from what follows from it and from what stands beside it."""

    fault: str
    level: Level
    role: Literal["primary", "also", "consequence"]
    confidence: float
    cause: str
    mend: tuple[str, ...]
    source: str
    evidence: tuple[Evidence, ...]
    follows_from: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The diagnosis as plain JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Reading:
    """What a log says. ``unknown``: it holds an error that no entry explains (``unexplained`` shows it)."""

    verdict: Verdict
    diagnoses: tuple[Diagnosis, ...]
    unexplained: tuple[Evidence, ...] = ()
    lines: int = 0
    bytes: int = 0
    thinned: bool = False

    @property
    def primary(self) -> Diagnosis | None:
        """The primary cause, None when there is no fault."""
        return next((each for each in self.diagnoses if each.role == "primary"), None)


def _pieces(text: str) -> Iterator[str]:
    """A line in pieces of bounded length: the lines of a message that was printed as one, the states of a bar."""
    whole = text.replace("\\n", "\n").replace("\r", "\n")
    parts = [text] if whole == text else whole.splitlines()
    for part in parts:
        for start in range(0, max(1, len(part)), _PIECE):
            yield part[start : start + _PIECE + _OVERLAP]


class _Log:
    """A scanned log, prepared for looking things up."""

    def __init__(self, scanned: Scan) -> None:
        self.scanned = scanned
        self.lines: list[Line] = []
        for line in scanned.lines:
            self.lines += [Line(line.number, piece) for piece in _pieces(line.text)]
        self.text = "\n".join(line.text.lower().replace("\n", " ") for line in self.lines)
        self.starts = list(accumulate(map(len, self.text.split("\n")), lambda start, size: start + size + 1, initial=0))
        self.readings = measure(scanned)
        self.cache: dict[tuple[str, bool], Evidence | None] = {}

    @functools.cached_property
    def versions(self) -> dict[str, str]:
        """Package versions that the log states."""
        stated = [line.text for line in self.lines if len(line.text) < 400 and _MAY_STATE_VERSION.search(line.text)]
        environment = reports.parse("\n".join(stated[:2000]))
        return {name: package.version for name, package in environment.packages.items()}

    def find(self, pattern: Pattern) -> Evidence | None:
        key = (pattern.text, pattern.strict)
        if key not in self.cache:
            self.cache[key] = self._find(pattern)
        return self.cache[key]

    def _find(self, pattern: Pattern) -> Evidence | None:
        if pattern.measures:
            numbers = [self.readings[name] for name in pattern.measures if name in self.readings]
            return Evidence(min(numbers), self._text_at(min(numbers))) if numbers else None
        if pattern.version:
            name, span = pattern.version
            version = self.versions.get(name, "")
            return Evidence(0, f"{name} {version}") if version and inside(version, span) else None
        places = (self._first(hint, regex, pattern.strict) for hint, regex in pattern.alternatives)
        found = [place for place in places if place is not None]
        if not found:
            return None
        line = self.lines[min(found)]
        return Evidence(line.number, _short(line.text))

    def _first(self, hint: str, regex: re.Pattern[str], strict: bool) -> int | None:
        """Place of the first line that matches; only lines with the pattern's literal piece are tried."""
        position = self.text.find(hint)
        while position >= 0:
            place = bisect_right(self.starts, position) - 1
            start, end = self.starts[place], self.starts[place + 1] - 1
            mild = strict and _MILD.search(self.text, start, start + min(200, (end - start) // 2 + 40))
            if not mild and regex.search(self.text, start, end):
                return place
            position = self.text.find(hint, end)
        return None

    def _text_at(self, number: int) -> str:
        return next((_short(line.text) for line in self.lines if line.number == number), "")


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= 300 else f"{text[:220]} ... {text[-70:]}"


def diagnose_scan(scanned: Scan, faults: Iterable[Fault] | None = None) -> Reading:
    """Match a scanned log against the faults."""
    log = _Log(scanned)
    matched: list[tuple[Fault, tuple[Evidence, ...]]] = []
    for fault in load() if faults is None else faults:
        evidence = _match(fault, log)
        if evidence is not None:
            matched.append((fault, evidence))
    diagnoses = _ranked(matched)
    alarms = [each for each in diagnoses if each.level in ("error", "warning")]
    unexplained = () if alarms else _unexplained(log, diagnoses)
    verdict: Verdict = "fault" if alarms else "unknown" if unexplained else "healthy"
    return Reading(verdict, diagnoses, unexplained, scanned.line_count, scanned.byte_count, scanned.thinned)


def _match(fault: Fault, log: _Log) -> tuple[Evidence, ...] | None:
    for every in fault.when:
        evidence: list[Evidence] = []
        for pattern in every:
            found = log.find(pattern)
            if found is None:
                break
            evidence.append(found)
        else:
            if any(log.find(pattern) for pattern in fault.unless):
                return None
            return tuple(dict.fromkeys(sorted(evidence, key=lambda each: each.line)))
    return None


def _ranked(matched: Sequence[tuple[Fault, tuple[Evidence, ...]]]) -> tuple[Diagnosis, ...]:
    """Highest rank first, of equal ranks the one seen first; what a found fault hides comes last, as its
    consequence.
    """
    severity = {"error": 0, "warning": 0, "note": 1, "ok": 1}
    order = sorted(matched, key=lambda each: (severity[each[0].level], -each[0].rank, each[1][0].line, each[0].id))
    cause_of: dict[str, str] = {}
    for fault, _ in order:
        if fault.id not in cause_of:
            for hidden in fault.hides:
                cause_of.setdefault(hidden, fault.id)
    diagnoses = []
    primary_given = False
    for fault, evidence in sorted(order, key=lambda each: each[0].id in cause_of):
        follows = cause_of.get(fault.id, "")
        role: Literal["primary", "also", "consequence"] = "consequence" if follows else "also"
        if not follows and not primary_given:
            role, primary_given = "primary", True
        diagnoses.append(
            Diagnosis(
                fault.id,
                fault.level,
                role,
                fault.confidence,
                fault.cause,
                fault.mend,
                fault.source,
                evidence,
                follows,
            )
        )
    return tuple(diagnoses)


def _tells_of_a_failure(text: str) -> bool:
    """A crash, or an exception's name where its message begins: after rank, process, level, time and module only."""
    if _CRASH.search(text):
        return True
    name = _ERROR_NAME.search(text)
    return name is not None and _BEFORE_ERROR.fullmatch(_BRACKETED.sub(" ", text[: name.start()])) is not None


def _unexplained(log: _Log, notes: Sequence[Diagnosis]) -> tuple[Evidence, ...]:
    """Errors in the log that no entry names: the last line of a traceback says most, so named errors come first."""
    explained = {evidence.line for note in notes for evidence in note.evidence}
    failed = [
        line
        for line in log.lines
        if _tells_of_a_failure(line.text) and line.number not in explained and not _MILD.search(line.text[:200].lower())
    ]
    named = [line for line in failed if _NAMED_ERROR.search(line.text)]
    return tuple(Evidence(line.number, _short(line.text)) for line in (named or failed)[:3])


def diagnose_text(text: str) -> Reading:
    """Diagnose a log that is in memory, for example the traceback of the run's own failure. Never raises."""
    return diagnose_scan(scan_text(text))


def diagnose_stream(stream: BinaryIO) -> Reading:
    """Diagnose a log as it is read; it is never held whole."""
    return diagnose_scan(scan(stream))


def diagnose_path(path: Path) -> list[tuple[Path, Reading]]:
    """Diagnose a file, or every log in a run directory (also `.gz`).

    Raises OSError when a file can't be read, FileNotFoundError when there is no log.
    """
    files = _logs_in(path) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"no log files (*.log, *.txt, *.out, *.err, *.jsonl) in {path}")
    readings = []
    for file in files:
        with file.open("rb") as stream:
            zipped = stream.read(2) == b"\x1f\x8b"
            stream.seek(0) if stream.seekable() else None
            if zipped:
                with gzip.open(stream) as unzipped:
                    readings.append((file, diagnose_stream(unzipped)))  # type: ignore[arg-type]
            else:
                readings.append((file, diagnose_stream(stream)))
    order = {"fault": 0, "unknown": 1, "healthy": 2}
    return sorted(readings, key=lambda each: order[each[1].verdict])


def _logs_in(folder: Path) -> list[Path]:
    """Logs up to three folders deep (CANN's own logs lie in ~/ascend/log/debug/plog)."""
    files: list[Path] = []
    for depth in ("*", "*/*", "*/*/*"):
        files += [file for file in sorted(folder.glob(depth)) if file.is_file() and _LOG_NAMES.search(file.name)]
    return files
