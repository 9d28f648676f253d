"""The verbs `doctor`, `diagnose` and `check-model`: read, judge, print, exit code. Text on stdout, or
stderr beside JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ascent.environment import (
    checks,
    display,
    faults,
    machine,
    matrix,
    model_check,
    model_files,
    reports,
    rules,
    settings,
    smoke,
    trackers,
)
from ascent.environment.finding import Finding, by_severity, exit_code
from ascent.environment.inventory import Environment

_REPORT_LIMIT = 16 << 20


class RefusedError(ValueError):
    """The command can't do what was asked: a file that can't be read, an unknown name. ``mend`` says what to do."""

    def __init__(self, message: str, mend: str = "") -> None:
        super().__init__(message)
        self.mend = mend


def doctor(
    *,
    report: Path | None = None,
    smoke_test: bool = False,
    tracker_names: Sequence[str] = (),
    need_gib: float | None = None,
    sleep_mode: bool | None = None,
    everything: bool = False,
    as_json: bool = False,
) -> int:
    """Inspect this machine, or the one that a report describes; 1 when there is a warning or an error.

    Raises RefusedError when the report can't be read, when a smoke test or a tracker is to be tried on a machine out of
    reach, and for a tracker that isn't known.
    """
    if report is not None and (smoke_test or tracker_names):
        asked = "--run" if smoke_test else "--trackers"
        raise RefusedError(f"{asked} tests this machine, --report reads another's", "give one of the two")
    unknown = [name for name in tracker_names if name not in trackers.NAMES]
    if unknown:
        raise RefusedError(f"--trackers {unknown[0]}: no such tracker", f"known: {', '.join(trackers.NAMES)}")
    environment = machine.inspect() if report is None else reports.parse(_read_report(report))
    need = None if need_gib is None else int(need_gib * 2**30)
    found = checks.run(environment, checks.Purpose(sleep_mode=sleep_mode, need_free_bytes=need))
    text = sys.stderr if as_json else sys.stdout
    colour = display.wants_colour(text)
    print(display.machine(environment), file=text)
    if smoke_test:
        found = by_severity([*_smoke(environment, text), *found])
    if tracker_names:
        found = by_severity([*trackers.check(tracker_names, _teller(text)), *found])
    print(display.findings(found, colour=colour, everything=everything), file=text)
    if as_json:
        judgement = matrix.judge(environment)
        _print_json(
            "doctor",
            {
                "environment": environment.as_dict(),
                "verdict": judgement.kind,
                "row": judgement.row.vllm_ascend if judgement.row else None,
                "differences": [vars(difference) for difference in judgement.differences],
                "findings": [finding.as_dict() for finding in found],
            },
        )
    return exit_code(found)


def _smoke(environment: Environment, text: Any) -> list[Finding]:
    if not smoke.worth_running(environment):
        return [rules.found("A801", "note", "torch isn't installed: there is nothing to run", mend=())]
    return [smoke.as_finding(result) for result in smoke.run(report=_teller(text))]


def _teller(text: Any) -> Callable[[smoke.Result], None]:
    def tell(result: smoke.Result) -> None:
        print(f"{result.outcome:<8} {result.step} ({result.seconds:.1f} s)", file=text, flush=True)

    return tell


def explain(name: str, *, as_json: bool = False) -> int:
    """Print what became of a setting, or what a rule means. Raises RefusedError for a name that isn't known."""
    text = sys.stderr if as_json else sys.stdout
    rule = rules.load().get(name.upper())
    if rule is not None:
        steps = "\n".join(f"  {index}. {step}" for index, step in enumerate(rule.mend, 1))
        print(f"{rule.number}: {rule.title}\n{rule.why}\n{steps}\nSource: {rule.source}.", file=text)
        if as_json:
            _print_json("doctor", {"rule": vars(rule)})
        return 0
    entry = settings.explain(name)
    if entry is None:
        near = settings.nearest(name)
        known = (
            f"did you mean {' or '.join(near)}?"
            if near
            else f"known: {', '.join(settings.load())}, and rules such as A401"
        )
        raise RefusedError(f"no entry for {name!r}", known)
    print(display.setting(entry), file=text)
    if as_json:
        _print_json("doctor", {"setting": vars(entry)})
    return 0


def diagnose(source: str, *, as_json: bool = False) -> int:
    """Diagnose a log, a run directory or standard input (`-`); 0 when a log shows a run's work and none an error.

    Raises RefusedError when nothing can be read.
    """
    if source == "-":
        readings = [(Path("standard input"), faults.diagnose_stream(sys.stdin.buffer))]
    else:
        try:
            readings = faults.diagnose_path(Path(source))
        except (OSError, EOFError) as error:
            raise RefusedError(
                f"can't read {source}: {error}", "give a log file, a run directory, or - for standard input"
            ) from error
    text = sys.stderr if as_json else sys.stdout
    print(display.readings(readings, colour=display.wants_colour(text)), file=text)
    if as_json:
        _print_json(
            "diagnose",
            {
                "verdict": readings[0][1].verdict,
                "primary": readings[0][1].primary.fault if readings[0][1].primary else None,
                "logs": [
                    {
                        "path": str(path),
                        "verdict": read.verdict,
                        "lines": read.lines,
                        "bytes": read.bytes,
                        "diagnoses": [each.as_dict() for each in read.diagnoses],
                        "unexplained": [vars(each) for each in read.unexplained],
                        "shown_by": vars(read.shown_by) if read.shown_by else None,
                    }
                    for path, read in readings
                ],
            },
        )
    verdicts = {read.verdict for _, read in readings}
    return 0 if "healthy" in verdicts and not verdicts & {"fault", "unknown"} else 1


def check_model(
    name: str,
    *,
    whole: Callable[[Path], Path] = lambda folder: folder,
    context: int | None = None,
    generate: bool = True,
    static_only: bool = False,
    everything: bool = False,
    as_json: bool = False,
) -> int:
    """Check a model folder against this machine; 1 when there is a warning or an error. ``whole`` gives the folder to
    check for one that may hold an adapter only. Raises RefusedError for no model.
    """
    environment = machine.inspect()
    try:
        given = model_files.locate(name)
        folder = whole(given)
        model, found = model_check.check(
            folder, environment, context=context, generate=generate, static_only=static_only
        )
    except model_files.ModelError as error:
        raise RefusedError(str(error)) from error
    text = sys.stderr if as_json else sys.stdout
    if folder != given:
        print(f"{given} holds an adapter; what is checked is {folder}", file=text)
    print(f"{model.folder}: {', '.join(model.architectures) or 'no architecture'}", file=text)
    print(display.findings(found, colour=display.wants_colour(text), everything=everything), file=text)
    if as_json:
        _print_json(
            "check-model",
            {
                "model": str(model.folder),
                "architectures": model.architectures,
                "findings": [finding.as_dict() for finding in found],
            },
        )
    return exit_code(found)


def _read_report(path: Path) -> str:
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read(_REPORT_LIMIT).decode("utf-8", errors="replace")
        with path.open("rb") as stream:
            return stream.read(_REPORT_LIMIT).decode("utf-8", errors="replace")
    except OSError as error:
        raise RefusedError(
            f"can't read {path}: {error.strerror}",
            "give a text file with the pasted output, or - for standard input",
        ) from error


def _print_json(verb: str, content: dict[str, Any]) -> None:
    print(json.dumps({"schema": f"ascent.{verb}/1", **content}, default=str, ensure_ascii=False))
