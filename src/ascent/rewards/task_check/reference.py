"""The reference of a task, run several times: does it pass, always, in any order, and in time?"""

from __future__ import annotations

from dataclasses import dataclass

from ascent.rewards.task_check.programs import Bench
from ascent.sandbox.types import Limits, Outcome, Verdict
from ascent.tasks.checking.cases import cases
from ascent.tasks.checking.findings import Finding
from ascent.types import Task

_SLOW = 0.5  # of a limit


@dataclass(frozen=True, slots=True)
class ReferenceRuns:
    """What the runs showed. `sound` where it passed all tests in all of them; `seconds` and `cpu_seconds` are those of
    the slowest."""

    findings: tuple[Finding, ...]
    sound: bool
    seconds: float
    cpu_seconds: float


def run_reference(task: Task, bench: Bench, *, repeats: int) -> ReferenceRuns:
    """Run it `repeats` times and once with its tests in reverse, and look at what it answers twice."""
    reference = task.reference or ""
    runs = [(reference, task.tests)] * repeats + [(reference, task.tests[::-1])]
    *straight, turned = bench.judge(task, runs)
    limits = bench.limits(task)
    unjudged = next((v.infrastructure_error for v in (*straight, turned) if v.infrastructure_error), None)
    if unjudged is not None:
        finding = Finding(task.id, "not-run", f"the sandbox failed: {unjudged}", "see `ascent sandbox check`")
        return ReferenceRuns((finding,), False, 0.0, 0.0)
    found = _of_outcomes(task, straight, turned)
    sound = all(verdict.all_passed for verdict in (*straight, turned))
    seconds = max(verdict.seconds for verdict in straight)
    cpu_seconds = max(verdict.cpu_seconds for verdict in straight)
    if sound:
        found += _of_speed(task, seconds, cpu_seconds, limits)
        found += _of_answers(task, bench, limits)
    return ReferenceRuns(tuple(found), sound, seconds, cpu_seconds)


def _of_outcomes(task: Task, straight: list[Verdict], turned: Verdict) -> list[Finding]:
    first = straight[0]
    if any(verdict.outcomes != first.outcomes for verdict in straight):
        return [
            Finding(
                task.id,
                "flaky",
                f"the reference ran {len(straight)} times, with different outcomes",
                "take chance, time and order out of tests and reference: a fixed seed, a tolerance, `unordered`",
                tuple(
                    f"{_name(task, place)}: {', '.join(sorted({str(v.outcomes[place]) for v in straight}))}"
                    for place in range(len(task.tests))
                    if len({verdict.outcomes[place] for verdict in straight}) > 1
                )[:5],
            )
        ]
    if not first.all_passed:
        return [_of_failure(task, first)]
    if not turned.all_passed:
        add = "let no test depend on what another left behind: set limits.isolate_tests, or mend the reference's state"
        return [Finding(task.id, "order-dependent", "the reference fails when its tests stand in reverse", add)]
    return []


def _of_failure(task: Task, verdict: Verdict) -> Finding:
    failed = [place for place, outcome in enumerate(verdict.outcomes) if outcome is not Outcome.PASSED]
    late = verdict.outcomes[failed[0]] is Outcome.TIMEOUT
    told = tuple(f"{_name(task, place)}: {verdict.outcomes[place]}" for place in failed[:5])
    what = f"the reference fails {len(failed)} of {len(task.tests)} tests: {verdict.error or 'no reason given'}"
    if late:
        return Finding(task.id, "too-slow", what, "make the tests smaller, or raise the task's limits", told)
    return Finding(task.id, "reference-fails", what, "mend the reference or the tests", told)


def _of_speed(task: Task, seconds: float, cpu_seconds: float, limits: Limits) -> list[Finding]:
    used = max(cpu_seconds / limits.cpu_seconds, seconds / limits.wall_seconds)
    if used <= _SLOW:
        return []
    what = f"the reference takes {used:.0%} of its time limit ({cpu_seconds:.2f} s of {limits.cpu_seconds:g} s CPU)"
    return [Finding(task.id, "slow", what, "make the tests smaller, or raise the task's limits")]


def _of_answers(task: Task, bench: Bench, limits: Limits) -> list[Finding]:
    """Whether it answers the same twice, also where the tests don't look."""
    asked = cases(task.tests, task.entry_point)
    if not asked or task.language != "python":
        return []
    one, other = (bench.answers(task, task.reference or "", asked, limits) for _ in range(2))
    differ = [place for place in one if place in other and one[place] != other[place]]
    if not differ:
        return []
    told = tuple(f"{asked[p].function}({asked[p].asked}): {one[p]}, then {other[p]}"[:200] for p in differ[:3])
    add = "make it answer the same each time, or be sure that every answer it may give passes"
    return [Finding(task.id, "changes-its-answer", "the reference answers the same call differently", add, told)]


def _name(task: Task, place: int) -> str:
    visible = len(task.visible_tests)
    return f"visible test {place + 1}" if place < visible else f"hidden test {place - visible + 1}"
