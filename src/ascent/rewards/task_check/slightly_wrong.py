"""Programs that are slightly wrong: do the tests tell them from the reference, and which further test would?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ascent.rewards.task_check.programs import Bench
from ascent.rewards.task_check.reference import ReferenceRuns
from ascent.sandbox.types import FunctionTest, Limits, Outcome, Test, Verdict
from ascent.tasks.checking.cases import cases
from ascent.tasks.checking.findings import Finding, MutantCounts
from ascent.tasks.checking.mutants import Mutant, mutants
from ascent.tasks.checking.neighbours import neighbours
from ascent.tasks.checking.probe import values
from ascent.tasks.jsonl import task_to_row
from ascent.tasks.values import encode_value
from ascent.types import Task

_FLOATS = 1e-6  # how far the floats of a suggested test may be off
_SUGGESTED = 3  # tests, at most
_MUTANT_SECONDS, _MUTANT_CPU_SECONDS = 1.0, 0.2  # what a mutant gets
_LONGER = 3  # and how many times the reference's
_ALL_MUTANTS_CPU_SECONDS = 20.0  # of one task, if none of them ended by itself


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """How much is tried. `repeats` runs of the reference, at most `mutants` changed programs, at most `inputs` further
    inputs to tell those that pass from the reference."""

    repeats: int = 3
    mutants: int = 20
    inputs: int = 36


def try_mutants(
    task: Task, bench: Bench, reference: ReferenceRuns, settings: CheckSettings
) -> tuple[MutantCounts, list[Finding]]:
    """Run the task's tests on changed references. `reference` passes them all."""
    limits = _mutant_limits(bench.limits(task), reference)
    most = min(settings.mutants, max(1, int(_ALL_MUTANTS_CPU_SECONDS / limits.cpu_seconds)))
    made = mutants(task.reference or "", most=most, seed=task.id)
    verdicts = bench.judge(task, [(mutant.source, task.tests) for mutant in made], limits)
    passing = [mutant for mutant, verdict in zip(made, verdicts, strict=True) if verdict.all_passed]
    fooled = [mutant for mutant, verdict in zip(made, verdicts, strict=True) if passes_visible_only(task, verdict)]
    wrong, tests = _tell_apart(task, bench, passing, limits, settings) if passing else ([], [])
    counts = MutantCounts(len(made), len(wrong), len(passing) - len(wrong), len(fooled))
    found = []
    if wrong:
        what = f"{len(wrong)} of {len(made)} programs with one change are wrong and pass all tests"
        add = f"where such inputs are allowed, hidden tests such as {'; '.join(map(_as_json, tests))}"
        found.append(Finding(task.id, "mutants-pass", what, add, tuple(mutant.change for mutant in wrong[:5])))
    elif passing:
        what = f"{len(passing)} of {len(made)} programs with one change pass all tests; no input showed them wrong"
        add = "look whether they are right; where one isn't, add a hidden test that it fails"
        found.append(Finding(task.id, "mutants-undecided", what, add, tuple(each.change for each in passing[:5])))
    if fooled:
        what = f"{len(fooled)} of {len(made)} programs with one change pass the visible tests and fail hidden ones"
        add = "reward hidden tests too (reward.tests: both), or show more tests"
        found.append(Finding(task.id, "visible-tests-weak", what, add, tuple(each.change for each in fooled[:5])))
    return counts, found


def passes_visible_only(task: Task, verdict: Verdict) -> bool:
    """Whether a program passes all visible tests, of which there is one at least, and not all hidden ones."""
    visible = verdict.outcomes[: len(task.visible_tests)]
    return bool(visible) and all(each is Outcome.PASSED for each in visible) and not verdict.all_passed


def _mutant_limits(limits: Limits, reference: ReferenceRuns) -> Limits:
    """A change may make a program run for ever: it gets little more time than the reference needs."""
    wall = _MUTANT_SECONDS + _LONGER * reference.seconds
    cpu = _MUTANT_CPU_SECONDS + _LONGER * reference.cpu_seconds
    return replace(limits, wall_seconds=min(limits.wall_seconds, wall), cpu_seconds=min(limits.cpu_seconds, cpu))


def _tell_apart(
    task: Task, bench: Bench, passing: Sequence[Mutant], limits: Limits, settings: CheckSettings
) -> tuple[list[Mutant], list[FunctionTest]]:
    """Those that answer other than the reference to some further input, and few tests that they all fail."""
    reference = task.reference or ""
    asked = [
        case
        for case in neighbours(
            cases(task.tests, task.entry_point), most=settings.inputs, source=reference, seed=task.id
        )
        if _is_plain([*case.args, case.kwargs])
    ]
    known = values(bench.answers(task, reference, asked, limits)) if asked else {}
    tests = [
        _like(task, FunctionTest(asked[place].function, asked[place].args, value, asked[place].kwargs))
        for place, value in known.items()
        if _is_plain(value)
    ]
    tests = [test for test in tests if bench.takes(test)]
    if not tests:
        return [], []
    again = bench.judge(task, [(reference, tests)] * 2, limits)
    stable = [test for place, test in enumerate(tests) if all(v.outcomes[place] is Outcome.PASSED for v in again)]
    verdicts = bench.judge(task, [(mutant.source, stable) for mutant in passing], limits) if stable else []
    fails = [
        {place for place, outcome in enumerate(verdict.outcomes) if outcome in (Outcome.FAILED, Outcome.ERROR)}
        for verdict in verdicts
    ]
    wrong = [mutant for mutant, failed in zip(passing, fails, strict=False) if failed]
    return wrong, [stable[place] for place in _few([failed for failed in fails if failed])]


def _few(fails: Sequence[set[int]]) -> list[int]:
    """Tests that each of these fails at least one of, the most telling first; at most `_SUGGESTED`."""
    left, chosen = list(fails), list[int]()
    while left and len(chosen) < _SUGGESTED:
        places = sorted({place for failed in left for place in failed})
        best = max(places, key=lambda place: sum(place in failed for failed in left))
        chosen.append(best)
        left = [failed for failed in left if best not in failed]
    return chosen


def _like(task: Task, test: FunctionTest) -> FunctionTest:
    """The test with the comparison that the task's own tests ask for."""
    own = next((each for each in task.tests if isinstance(each, FunctionTest)), None)
    tolerance = _FLOATS if _has_float(test.expected) else None
    if own is None:
        return replace(test, tolerance=tolerance)
    tolerance = tolerance if own.tolerance is None else own.tolerance
    return replace(test, tolerance=tolerance, unordered=own.unordered, as_json=own.as_json, or_in_list=own.or_in_list)


def _has_float(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_float, value.values()))
    return isinstance(value, float) or (isinstance(value, (list, tuple, set)) and any(map(_has_float, value)))


def _is_plain(value: Any) -> bool:
    try:
        encode_value(value)
    except (TypeError, RecursionError):
        return False
    return True


def _as_json(test: Test) -> str:
    row = task_to_row(Task("", "", (), (test,)))["hidden_tests"][0]
    return json.dumps(row, ensure_ascii=True)
