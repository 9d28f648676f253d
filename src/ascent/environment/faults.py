"""Log text -> known faults, the primary cause first (`known_faults.py` says what is known)."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from ascent.environment import codes, context, drifts, known_faults, matching, metrics, origins, programs, signs
from ascent.environment.finding import Level
from ascent.environment.known_faults import Fault
from ascent.environment.log_scan import Scan, scan, scan_text
from ascent.environment.log_view import Evidence, Log, short
from ascent.environment.matching import Match
from ascent.environment.ranking import Ranked, Role, ranked

Verdict = Literal["fault", "healthy", "unknown", "unjudged"]
_LOG_NAMES = re.compile(r"\.(?:log|txt|err|out|stderr|stdout|jsonl)(?:\.\d+)?(?:\.gz)?$|^(?:nohup\.out|stderr|stdout)$")
_MEMORY = re.compile(r"oom|memory|207001|el0004|buffer")
_SHOWN = 3


@dataclass(frozen=True)
class Diagnosis:
    """A recognised fault. ``role`` tells the primary cause from what follows from it or stands beside it
    (``follows_from`` names it), and from what is a fault of its own.

    ``context`` says where it happened, as far as the lines around tell; ``decide`` what would tell other causes apart.
    """

    fault: str
    level: Level
    role: Role
    confidence: float
    cause: str
    mend: tuple[str, ...]
    source: str
    evidence: tuple[Evidence, ...]
    follows_from: str = ""
    context: str = ""
    decide: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The diagnosis as plain JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Reading:
    """What a log says.

    ``fault``: a known fault, or one that its own words, code or package tell something of; then ``unexplained`` holds
    the lines that no entry knows. ``unknown``: lines that look like errors and that no entry explains.
    ``healthy``: no fault, no error, and a line that shows that the run did its work (``shown_by``). ``unjudged``:
    neither an error nor any sign of work; it is no all-clear.
    """

    verdict: Verdict
    diagnoses: tuple[Diagnosis, ...]
    unexplained: tuple[Evidence, ...] = ()
    shown_by: Evidence | None = None
    lines: int = 0
    bytes: int = 0
    thinned: bool = False

    @property
    def primary(self) -> Diagnosis | None:
        """The primary cause, None when there is no fault."""
        return next((each for each in self.diagnoses if each.role == "primary"), None)


def diagnose_scan(scanned: Scan, faults: Iterable[Fault] | None = None) -> Reading:
    """Match a scanned log against the faults."""
    log = Log(scanned)
    found = matching.matches(log, known_faults.load() if faults is None else faults)
    order = ranked(log, [*found, *_more_general(log, found)])
    passed = _passed(scanned, order)
    alarmed = any(each.alarm for each in order) and not passed
    diagnoses = tuple(_diagnosis(log, each, passed) for each in order)
    guessed = alarmed and not any(each.alarm and each.match.fault.when for each in order)
    unexplained = _unexplained(log, [] if guessed else diagnoses) if guessed or not alarmed else ()
    silent = alarmed or unexplained or scanned.binary or drifts.stands_still(metrics.rows(scanned))
    work = None if silent else signs.evidence_of_work(scanned, log.lines)
    verdict: Verdict = "fault" if alarmed else "unknown" if unexplained else "healthy" if work else "unjudged"
    shown_by = Evidence(work.number, short(work.text)) if work else None
    return Reading(verdict, diagnoses, unexplained, shown_by, scanned.line_count, scanned.byte_count, scanned.thinned)


def _passed(scanned: Scan, order: Sequence[Ranked]) -> bool:
    """Whether all that was found is of a kind that passes, and the work was done after it."""
    alarms = [each.match for each in order if each.alarm]
    last = max((evidence.line for each in alarms for evidence in each.evidence), default=0)
    return bool(alarms) and all(each.fault.passes for each in alarms) and signs.end_of_work(scanned, last) is not None


def _more_general(log: Log, found: Sequence[Match]) -> list[Match]:
    """Where no entry names the fault: the vendor's codes, and whose exception it is."""
    if any(each.fault.level == "error" and not each.fault.catch_all for each in found):
        return []
    explained = {evidence.line for each in found for evidence in each.evidence}
    return [*codes.stated(log), *origins.told(log, explained), *programs.told(log, explained)]


def _diagnosis(log: Log, each: Ranked, passed: bool) -> Diagnosis:
    fault, evidence = each.match.fault, each.match.evidence
    around, mend, cause = "", fault.mend, fault.cause
    if each.alarm and each.role in ("primary", "also") and each.match.places:
        telling = "\n".join(line.text for line in evidence)
        memory = bool(_MEMORY.search(f"{fault.id} {telling}".lower()))
        where = str(context.read(log.around(each.match.places[0]), telling, memory=memory))
        meant = [(code, meaning) for code, meaning in codes.meant(telling) if code.lower() not in fault.id]
        said = [f"{code}: {meaning.text}" for code, meaning in meant]
        around = "; ".join(part for part in (where, *said) if part)
        if fault.catch_all:  # what the code asks for says more
            mend = tuple(dict.fromkeys((*mend, *(step for _, meaning in meant for step in meaning.mend))))
            names = origins.named_at(log, each.match.places[0]) if fault.when else ()
            if names:
                cause = f"{cause} Here it is about {', '.join(names)}."
                mend = (f"look at {', '.join(names)}: what the message and the line above it name", *mend)
    return Diagnosis(
        fault.id,
        "note" if passed else fault.level,
        each.role,
        fault.confidence,
        cause,
        mend,
        fault.source,
        evidence,
        each.head,
        around,
        fault.decide,
    )


def _unexplained(log: Log, notes: Sequence[Diagnosis]) -> tuple[Evidence, ...]:
    """Lines that look like errors and that no note accounts for."""
    explained = {evidence.line for note in notes for evidence in note.evidence}
    return tuple(Evidence(line.number, short(line.text)) for line in signs.errors(log.lines, explained)[:_SHOWN])


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
    order = {"fault": 0, "unknown": 1, "unjudged": 2, "healthy": 3}
    return sorted(readings, key=lambda each: order[each[1].verdict])


def _logs_in(folder: Path) -> list[Path]:
    """Logs up to three folders deep (CANN's own logs lie in ~/ascend/log/debug/plog)."""
    files: list[Path] = []
    for depth in ("*", "*/*", "*/*/*"):
        files += [file for file in sorted(folder.glob(depth)) if file.is_file() and _LOG_NAMES.search(file.name)]
    return files
