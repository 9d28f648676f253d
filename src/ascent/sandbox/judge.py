"""Judges one program on one slot: what to run, what each end means, which outcome each test gets.

The number of tests and their order are fixed here before the program runs. Nothing that a program writes is
an outcome.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ascent.sandbox.asserts import Call, decompose, free_names
from ascent.sandbox.compilers import find_toolchain
from ascent.sandbox.compiling import CompileCache, check_program, compile_program
from ascent.sandbox.errors import InvalidTestError, SlotError
from ascent.sandbox.inside.values import encode, refuse
from ascent.sandbox.jobs import explain, make_job
from ascent.sandbox.preludes import check_prelude, modules_of
from ascent.sandbox.slot import Comparison, Ending, Slot
from ascent.sandbox.types import (
    AssertTest,
    FunctionTest,
    Level,
    Limits,
    Outcome,
    Program,
    StdioTest,
    Test,
    Verdict,
)

_STATUS_BYTES = 65536
_NOTHING_SPECIAL: Mapping[str, Any] = {}
_EXCERPT = 2000
_TESTER_COULD_NOT_BEGIN = 70 << 8  # a wait status, see `inside/supervisor.py`


@dataclass(frozen=True, slots=True)
class Plan:
    """A program's tests, sorted by how they are run. Each entry is (place in the given order, what to
    run)."""

    count: int
    calls: tuple[tuple[int, tuple[Call, ...]], ...] = ()
    asserts: tuple[tuple[int, AssertTest], ...] = ()
    in_process: tuple[tuple[int, AssertTest], ...] = ()
    stdio: tuple[tuple[int, StdioTest], ...] = ()


def make_plan(program: Program, tests: Sequence[Test], allow_in_process: bool) -> Plan:
    """Sort and check the tests, and the prelude, before anything runs. Raises InvalidTestError."""
    check_prelude(program)
    calls: list[tuple[int, tuple[Call, ...]]] = []
    asserts, in_process = [], []
    stdio: list[tuple[int, StdioTest]] = []
    for place, test in enumerate(tests):
        if program.language != "python" and not isinstance(test, StdioTest):
            raise InvalidTestError(f"test {place}: a {program.language} program takes stdio tests, not {test.kind}")
        if isinstance(test, FunctionTest):
            calls.append((place, (_call(place, test),)))
        elif isinstance(test, StdioTest):
            stdio.append((place, test))
        elif not isinstance(test, AssertTest):
            raise InvalidTestError(f"test {place}: {type(test).__name__} is no kind of test; see docs/sandbox.md")
        elif test.in_process:
            if not allow_in_process:
                raise InvalidTestError(
                    f"test {place} asks to run in the program's own process, where it can be forged; "
                    "allow it with Sandbox(allow_in_process=True) or write it without in_process"
                )
            in_process.append((place, test))
        else:
            simple = _decomposed(place, test)
            if simple is None:
                asserts.append((place, test))
            else:
                calls.append((place, tuple(simple)))
    return Plan(len(tests), tuple(calls), tuple(asserts), tuple(in_process), tuple(stdio))


def _call(place: int, test: FunctionTest) -> Call:
    tolerance = None if test.tolerance is None else float(test.tolerance)
    how = {"mode": "json" if test.as_json else "strict", "tolerance": tolerance, "unordered": test.unordered}
    check = {**how, "expected": test.expected, "or_in_list": test.or_in_list, "after": None}
    if test.mutated is not None:
        check["after"] = {**how, "expected": list(test.mutated)}
    call = Call(test.function, tuple(test.args), dict(test.kwargs), check, test.mutated is not None)
    try:
        encode([call.args, call.kwargs, check], refuse)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTestError(f"test {place} ({test.function}): {error}") from error
    return call


def _decomposed(place: int, test: AssertTest) -> list[Call] | None:
    try:
        free_names(f"{test.setup}\n{test.code}")
        return decompose(test.code)
    except (SyntaxError, ValueError) as error:
        raise InvalidTestError(f"test {place}: its code isn't Python: {error}") from error


class Judge:
    """Judges one program. `level` and `slot` are those that will run it, `cache` holds compiled programs."""

    def __init__(
        self, slot: Slot, level: Level, program: Program, plan: Plan, limits: Limits, cache: CompileCache
    ) -> None:
        self._slot, self._level, self._program, self._plan, self._limits = slot, level, program, plan, limits
        self._cache = cache
        self._source = program.source.encode("utf-8", "surrogatepass")
        self._prelude = program.prelude.encode("utf-8", "surrogatepass")
        self._prelude_modules = list(modules_of(program.prelude))
        self._outcomes = [Outcome.NOT_RUN] * plan.count
        self._started = time.monotonic()
        self._wall_left, self._cpu_left = limits.wall_seconds, limits.cpu_seconds
        self._compiled: bool | None = None
        self._error: str | None = None
        self._output = ""
        self._peak_bytes = 0
        self._over = self._stopped = False

    def verdict(self) -> Verdict:
        """Run everything. Raises SlotError when the sandbox, not the program, is at fault."""
        if self._program.language != "python":
            self._run_compiled()
        elif not self._plan.count:
            self._compile_only()
        else:
            self._run_calls()
            self._run_asserts()
            self._run_in_process()
            self._run_all_stdio()
        return Verdict(
            compiled=bool(self._compiled),
            outcomes=tuple(self._outcomes),
            seconds=time.monotonic() - self._started,
            cpu_seconds=self._limits.cpu_seconds - self._cpu_left,
            output=self._output,
            error=self._error,
            level=self._level,
            peak_bytes=self._peak_bytes,
        )

    # Running

    def _job(self, kind: str, answers: int, stdin: bytes = b"") -> dict[str, Any]:
        job = make_job(kind, self._limits, self._wall_left, self._cpu_left)
        return {
            **job,
            "answers": answers,
            "prelude_bytes": len(self._prelude),
            "prelude_modules": self._prelude_modules,
            "source_bytes": len(self._source),
            "stdin_bytes": len(stdin),
        }

    def _run(self, job: dict[str, Any], *parts: bytes, test_code: str | None = None) -> Ending:
        ending = self._slot.run(job, [self._prelude, self._source, *parts], test_code)
        self._wall_left -= ending.wall
        self._cpu_left -= ending.cpu
        self._peak_bytes = max(self._peak_bytes, ending.peak_bytes)
        if not ending.began and ending.reason is None:
            words = ending.err.decode("utf-8", "replace").strip()[:500]
            raise SlotError(f"a child could not begin (code {ending.code}, signal {ending.signal}): {words}")
        if not self._output:
            self._output = (ending.out + ending.err)[:_EXCERPT].decode("utf-8", "replace")
        if ending.reason in ("wall", "cpu") or min(self._wall_left, self._cpu_left) <= 0:
            self._over = True
        return ending

    def _compile_only(self) -> None:
        ending = self._run(self._job("check", 0))
        comparison = self._compare_status(ending)
        self._note_start(comparison, ending)

    def _compare_status(self, ending: Ending) -> Comparison:
        status = ending.channel[:_STATUS_BYTES].decode("latin-1")
        return self._slot.compare({"kind": "tests", "count": 0, "status": status}, b"", 0)

    def _run_calls(self) -> None:
        pending = list(self._plan.calls)
        while pending and not self._over:
            batch = pending[:1] if self._limits.isolate_tests else pending
            done = self._run_batch(batch)
            pending = pending[done:]

    def _run_batch(self, batch: Sequence[tuple[int, tuple[Call, ...]]]) -> int:
        """One fork for these tests. Returns how many of them are settled; the rest deserves another fork."""
        calls = [call for _, group in batch for call in group]
        requests = [[call.function, list(call.args), call.kwargs, call.wants_args] for call in calls]
        checks = [[_wire_check(call) for call in group] for _, group in batch]
        ending = self._run(self._job("function", len(calls)), encode(requests, refuse).encode())
        request = {"kind": "values", "checks": encode(checks, refuse)}
        comparison = self._slot.compare(request, ending.channel, len(batch))
        self._note_start(comparison, ending)
        whole = _whole_tests([len(group) for _, group in batch], ending.answered)
        return self._settle([place for place, _ in batch], comparison, ending, whole)

    def _settle(self, places: Sequence[int], comparison: Comparison, ending: Ending, whole: int) -> int:
        """Give outcomes to the first `whole` tests and to the one that the program ended in."""
        for place, answer in zip(places[:whole], comparison.answers, strict=False):
            self._set(place, *answer)
            if self._stopped:
                return len(places)
        if whole >= len(places):
            return len(places)
        outcome, error = comparison.ended or self._why(ending, comparison.answers[whole])
        if comparison.loaded and not self._over:
            self._set(places[whole], outcome, error)
            return whole + 1
        rest = places[whole : whole + 1] if comparison.loaded else places[whole:]
        for place in rest:
            self._set(place, outcome, error)
        return len(places)

    def _run_asserts(self) -> None:
        pending = list(self._plan.asserts)
        while pending and not self._over:
            batch = pending[:1] if self._limits.isolate_tests else pending
            code = encode([_tester_code(test) for _, test in batch], refuse)
            ending = self._run(self._job("assert", len(batch)), test_code=code)
            if ending.tester_status == _TESTER_COULD_NOT_BEGIN:
                raise SlotError("a tester could not begin")
            status = ending.channel[:_STATUS_BYTES].decode("latin-1")
            request = {"kind": "tests", "count": len(batch), "status": status}
            comparison = self._slot.compare(request, ending.tests, len(batch))
            self._note_start(comparison, ending)
            done = self._settle([place for place, _ in batch], comparison, ending, ending.tests_answered)
            pending = pending[done:]

    def _run_in_process(self) -> None:
        places = [place for place, _ in self._plan.in_process]
        if not places or self._over:
            return
        code = encode([[test.setup, test.code] for _, test in self._plan.in_process], refuse).encode()
        ending = self._run(self._job("in_process", len(places)), code)
        check = {"mode": "is", "expected": True, "after": None, "function": "the test"}
        request = {"kind": "values", "checks": encode([[check]] * len(places), refuse)}
        comparison = self._slot.compare(request, ending.channel, len(places))
        self._note_start(comparison, ending)
        self._settle(places, comparison, ending, min(ending.answered, len(places)))

    def _run_compiled(self) -> None:
        """Compile, then run what came out. Compiling isn't counted against the program's limits."""
        toolchain = find_toolchain(self._program.language)
        if not self._plan.count:
            self._compiled, self._error = check_program(self._slot, toolchain, self._source, self._cache.limits)
            return
        with self._cache.entry(toolchain, self._source) as entry:
            compile_program(self._slot, toolchain, self._source, entry, self._cache.limits)
            self._compiled, self._error = entry.error is None, entry.error
            if entry.error is not None:
                self._outcomes = [Outcome.ERROR] * self._plan.count
                return
            self._source = b""
            self._run_all_stdio(
                {"kind": "execute", "profile": "execute", "command": ["program"], "executables": [entry.path]}
            )

    def _run_all_stdio(self, special: Mapping[str, Any] = _NOTHING_SPECIAL) -> None:
        for place, test in self._plan.stdio:
            if not self._over:
                self._run_stdio(place, test, special)

    def _run_stdio(self, place: int, test: StdioTest, special: Mapping[str, Any]) -> None:
        stdin = test.stdin.encode("utf-8", "surrogatepass")
        wall = self._wall_left
        if self._limits.per_test_seconds is not None:
            wall = min(wall, self._limits.per_test_seconds)
        job = {**self._job("stdio", 0, stdin), "wall": max(0.01, wall), "per_test": None, **special}
        ending = self._run(job, stdin)
        self._over = min(self._wall_left, self._cpu_left) <= 0
        status = ending.channel[:_STATUS_BYTES].decode("latin-1")
        request = {"kind": "output", "expected": test.stdout, "tolerance": test.tolerance, "status": status}
        comparison = self._slot.compare(request, ending.out, 1)
        self._note_start(comparison, ending)
        if comparison.ended:
            self._set(place, *comparison.ended)
        elif ending.reason is not None or ending.signal is not None or ending.code != 0:
            self._set(place, *self._why(ending, ("error", "")))
        else:
            self._set(place, *comparison.answers[0])

    # Outcomes

    def _note_start(self, comparison: Comparison, ending: Ending) -> None:
        if self._compiled is None:
            self._compiled = comparison.compiled
        if comparison.ended and self._error is None:
            self._error = comparison.ended[1]
        elif not self._plan.count and not comparison.compiled:
            self._error = self._why(ending, ("error", "the program can't be compiled"))[1]

    def _set(self, place: int, outcome: str, error: str | None) -> None:
        self._outcomes[place] = Outcome(outcome)
        if outcome == "passed":
            return
        if self._error is None:
            self._error = error
        if self._limits.stop_at_first_failure:
            self._over = self._stopped = True

    def _why(self, ending: Ending, answer: tuple[str, str | None]) -> tuple[str, str]:
        """What an end without an answer means. A tampered channel is more than its end."""
        if answer[0] == "tampered":
            return answer[0], str(answer[1])
        return explain(ending, self._limits)


def _tester_code(test: AssertTest) -> list[Any]:
    code = f"{test.setup}\n{test.code}"
    return [code, free_names(code)]


def _wire_check(call: Call) -> dict[str, Any]:
    return {"after": None, **call.check, "function": call.function}


def _whole_tests(sizes: Sequence[int], answered: int) -> int:
    """How many tests are wholly answered when `answered` calls are."""
    whole = 0
    for size in sizes:
        answered -= size
        if answered < 0:
            break
        whole += 1
    return whole
