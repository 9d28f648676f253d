"""What a run and the judge of a node say to each other: JSON text of plain data, checked where it arrives.

A judge's process runs beside hostile programs. Nothing that it answers is more than data, and an answer that isn't of
the expected form counts for nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args

from ascent.sandbox.inside.values import MalformedError, decode, encode, refuse
from ascent.sandbox.types import (
    LEVELS,
    AssertTest,
    FunctionTest,
    Language,
    Level,
    Limits,
    Outcome,
    Program,
    StdioTest,
    Test,
    Verdict,
)

_KINDS: dict[str, type[FunctionTest] | type[StdioTest] | type[AssertTest]] = {
    "function": FunctionTest,
    "stdio": StdioTest,
    "assert": AssertTest,
}
_LONGEST_TEXT = 1 << 16  # characters of an excerpt or an error in a verdict
_VERDICT = {each.name for each in fields(Verdict)}


class MessageError(ValueError):
    """A message that isn't of the expected form."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A program to be judged by the tests with that digest; `limits` None: those of the judge."""

    program: Program
    tests: str
    limits: Limits | None
    later: bool


@dataclass(frozen=True, slots=True)
class Request:
    """Programs, and the text of tests that the node may not have yet, by digest."""

    programs: tuple[Asked, ...]
    tests: dict[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """One verdict a program, in their order; or, with nothing judged, the digests of tests that the node lacks."""

    verdicts: tuple[Verdict, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class About:
    """What a judge says of itself: programs at once, its confinement; or why it can't judge."""

    slots: int
    level: Level
    error: str = ""


def dump_tests(tests: Sequence[Test]) -> str:
    """Tests as text. Raises TypeError where a value isn't plain data."""
    return encode([{each.name: getattr(test, each.name) for each in fields(test)} for test in tests], refuse)


def load_tests(text: str) -> tuple[Test, ...]:
    """Back from `dump_tests`. Raises MessageError."""
    try:
        return tuple(_KINDS[row["kind"]](**row) for row in decode(text))
    except (MalformedError, TypeError, LookupError) as error:
        raise MessageError(f"these aren't tests: {error}") from error


def digest(text: str) -> str:
    """SHA-256 of a text, lone surrogates included."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def dump_request(request: Request) -> str:
    """A request as text."""
    programs = [
        [asked.program.source, asked.program.language, asked.program.prelude, asked.tests, _changed(asked), asked.later]
        for asked in request.programs
    ]
    return json.dumps({"programs": programs, "tests": request.tests})


def load_request(text: str) -> Request:
    """Back from `dump_request`. Raises MessageError, also where a text of tests isn't that of its digest."""
    try:
        given = json.loads(text)
        programs = tuple(_asked(*row) for row in given["programs"])
        tests = {str(name): str(content) for name, content in given["tests"].items()}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise MessageError(f"this isn't a request: {error}") from error
    wrong = [name for name, content in tests.items() if digest(content) != name]
    if wrong:
        raise MessageError(f"tests that don't have their digest: {', '.join(wrong)}")
    return Request(programs, tests)


def _changed(asked: Asked) -> dict[str, Any] | None:
    return None if asked.limits is None else asdict(asked.limits)


def _asked(source: str, language: Language, prelude: str, tests: str, limits: Any, later: bool) -> Asked:
    if not (isinstance(source, str) and isinstance(prelude, str) and language in get_args(Language)):
        raise MessageError("this isn't a program")
    return Asked(Program(source, language, prelude), tests, None if limits is None else Limits(**limits), later is True)


def dump_answer(answer: Answer) -> str:
    """An answer as text."""
    return json.dumps({"verdicts": [asdict(verdict) for verdict in answer.verdicts], "missing": list(answer.missing)})


def load_answer(text: object, counts: Sequence[int], least: Level) -> Answer:
    """Back from `dump_answer`, of a judge that was asked for programs with `counts` tests each and must confine them at
    `least` so well. Raises MessageError."""
    given = _object(text, {"verdicts", "missing"})
    missing, verdicts = given["missing"], given["verdicts"]
    if not isinstance(missing, list) or not all(isinstance(each, str) for each in missing):
        raise MessageError("the digests of missing tests aren't text")
    if missing:
        return Answer(missing=tuple(missing))
    if not isinstance(verdicts, list) or len(verdicts) != len(counts):
        raise MessageError(f"expected {len(counts)} verdicts")
    return Answer(tuple(_verdict(verdict, count, least) for verdict, count in zip(verdicts, counts, strict=True)))


def _verdict(given: Any, count: int, least: Level) -> Verdict:
    if not isinstance(given, dict) or set(given) != _VERDICT:
        raise MessageError("a verdict has other fields")
    if given["level"] not in LEVELS or LEVELS.index(given["level"]) < LEVELS.index(least):
        raise MessageError(f"a program was confined less well ({given['level']!r:.40}) than is required ({least!r})")
    outcomes = given["outcomes"]
    if not isinstance(outcomes, list) or len(outcomes) != count:
        raise MessageError(f"a verdict hasn't {count} outcomes")
    try:
        read = tuple(Outcome(outcome) for outcome in outcomes)
    except ValueError as error:
        raise MessageError(f"a verdict has {error}") from error
    return Verdict(
        compiled=_typed(given, "compiled", bool),
        outcomes=read,
        seconds=_number(given, "seconds"),
        cpu_seconds=_number(given, "cpu_seconds"),
        output=_typed(given, "output", str)[:_LONGEST_TEXT],
        error=_text_or_none(given, "error"),
        level=given["level"],
        infrastructure_error=_text_or_none(given, "infrastructure_error"),
        peak_bytes=int(_number(given, "peak_bytes")),
    )


def dump_about(about: About) -> str:
    """What a judge says of itself, as text."""
    return json.dumps(asdict(about))


def load_about(text: object) -> About:
    """Back from `dump_about`. Raises MessageError."""
    given = _object(text, {"slots", "level", "error"})
    if given["level"] not in LEVELS:
        raise MessageError(f"{given['level']!r:.40} is no level")
    return About(int(_number(given, "slots")), given["level"], _typed(given, "error", str)[:_LONGEST_TEXT])


def _object(text: object, names: set[str]) -> dict[str, Any]:
    if not isinstance(text, str):
        raise MessageError(f"expected text, not {type(text).__name__}")
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"this isn't JSON: {error}") from error
    if not isinstance(given, dict) or set(given) != names:
        raise MessageError(f"expected {', '.join(sorted(names))}")
    return given


def _typed(given: dict[str, Any], name: str, kind: type) -> Any:
    if type(given[name]) is not kind:
        raise MessageError(f"{name} is {type(given[name]).__name__}, not {kind.__name__}")
    return given[name]


def _number(given: dict[str, Any], name: str) -> float:
    value = given[name]
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
        raise MessageError(f"{name} is no number from 0 on: {value!r:.40}")
    return value


def _text_or_none(given: dict[str, Any], name: str) -> str | None:
    return None if given[name] is None else _typed(given, name, str)[:_LONGEST_TEXT]
