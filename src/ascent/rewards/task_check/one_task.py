"""Everything that is checked about one task."""

from __future__ import annotations

from ascent.rewards.task_check.programs import Bench
from ascent.rewards.task_check.reference import run_reference
from ascent.rewards.task_check.slightly_wrong import CheckSettings, passes_visible_only, try_mutants
from ascent.tasks.checking.findings import Finding, MutantCounts, TaskCheck, in_order
from ascent.tasks.checking.given_away import given_away, repeated_tests
from ascent.tasks.checking.trivial import lookup_program, trivial_programs
from ascent.types import Task


def check_task(task: Task, bench: Bench, settings: CheckSettings) -> TaskCheck:
    """Read the task and run programs for it."""
    found = [*given_away(task), *repeated_tests(task)]
    counts = MutantCounts()
    refusal = bench.refusal(task)
    if refusal is not None:
        found.append(Finding(task.id, "not-run", f"its tests can't be run here: {refusal}", "mend the tests"))
    else:
        trivial = _try_trivial(task, bench)
        found += trivial
        if task.reference is None:
            add = "give one: without it neither the tests nor wrong programs can be tried"
            found.append(Finding(task.id, "no-reference", "there is no reference", add))
        else:
            reference = run_reference(task, bench, repeats=settings.repeats)
            found += reference.findings
            solved = any(finding.kind == "trivial-passes" for finding in trivial)  # then anything passes
            if reference.sound and task.language == "python" and not solved:
                counts, about = try_mutants(task, bench, reference, settings)
                found += about
    return TaskCheck(task.id, len(task.visible_tests), len(task.hidden_tests), counts, in_order(found))


def _try_trivial(task: Task, bench: Bench) -> list[Finding]:
    programs = trivial_programs(task)
    verdicts = bench.judge(task, [(program.source, task.tests) for program in programs])
    found = []
    passing = [p for p, verdict in zip(programs, verdicts, strict=True) if verdict.all_passed]
    if passing:
        what = f"a program that {passing[0].what} passes all tests"
        add = "add tests whose results differ from each other and from the input"
        found.append(Finding(task.id, "trivial-passes", what, add, tuple(program.what for program in passing[:5])))
    fooled = [p for p, v in zip(programs, verdicts, strict=True) if passes_visible_only(task, v)]
    if fooled and not passing:
        what = f"a program that {fooled[0].what} passes all visible tests (and fails hidden ones)"
        add = "add a visible test with another result, or reward hidden tests"
        found.append(Finding(task.id, "visible-tests-weak", what, add, tuple(program.what for program in fooled[:5])))
    lookup = lookup_program(task)
    asks_more = any(test not in task.visible_tests for test in task.hidden_tests)
    if lookup is not None and asks_more and bench.judge(task, [(lookup, task.tests)])[0].all_passed:
        what = "a program that knows the visible tests' answers passes the hidden ones as well"
        found.append(Finding(task.id, "hidden-repeats-visible", what, "add hidden tests with other inputs"))
    return found
