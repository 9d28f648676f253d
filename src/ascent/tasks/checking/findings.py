"""What is wrong with a task, how bad it is, and what to add."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "note"]

# Kinds of findings, the worst first. An error: the task's verdicts can't be relied on. A warning: it needs more or
# other tests. A note: good to know, and nothing to mend as long as hidden tests are rewarded.
KINDS: dict[str, Level] = {
    "not-run": "error",  # its tests can't be run here
    "reference-fails": "error",
    "flaky": "error",  # the same program, another outcome
    "order-dependent": "error",  # another outcome when the tests stand in another order
    "trivial-passes": "error",  # a program that does nothing passes all tests
    "too-slow": "error",  # the reference runs into the limit
    "solution-in-prompt": "error",
    "duplicate-over-split": "warning",  # held out, and known from training
    "mutants-pass": "warning",  # wrong programs pass all tests
    "no-hidden-tests": "warning",
    "hidden-repeats-visible": "warning",  # hidden tests ask nothing new
    "tests-in-prompt": "warning",
    "changes-its-answer": "warning",  # the reference
    "slow": "warning",  # the reference takes over half of the limit
    "no-reference": "warning",
    "visible-tests-weak": "note",  # wrong programs pass the visible tests, and fail hidden ones
    "some-tests-in-prompt": "note",
    "duplicate": "note",  # within one half
    "mutants-undecided": "note",  # programs that pass all tests, and may be right
}
_ORDER = {kind: place for place, kind in enumerate(KINDS)}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about one task: `what` was seen, and what to `add` or change. `evidence` are programs, tests or ids."""

    task_id: str
    kind: str
    what: str
    add: str
    evidence: tuple[str, ...] = ()

    @property
    def level(self) -> Level:
        """How bad it is."""
        return KINDS[self.kind]


@dataclass(frozen=True, slots=True)
class MutantCounts:
    """What became of a task's mutants: `made` in all; `wrong` pass all tests and answer other than the reference to
    some further input; `undecided` pass all tests and no input was found that tells them from it; `visible_only` pass
    all visible tests and fail a hidden one."""

    made: int = 0
    wrong: int = 0
    undecided: int = 0
    visible_only: int = 0


@dataclass(frozen=True, slots=True)
class TaskCheck:
    """One task with what was found, the worst first."""

    task_id: str
    visible: int  # tests
    hidden: int
    mutants: MutantCounts
    findings: tuple[Finding, ...]


def worst_first(checks: Iterable[TaskCheck]) -> list[TaskCheck]:
    """Those with findings, in order of their worst one, then of how many there are."""
    found = [check for check in checks if check.findings]
    return sorted(found, key=lambda check: (_ORDER[check.findings[0].kind], -len(check.findings), check.task_id))


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings of one task, the worst first."""
    return tuple(sorted(findings, key=lambda finding: _ORDER[finding.kind]))
