"""What was found in a set of tasks: for people the worst first, for programs all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ascent.tasks.checking.findings import KINDS, Finding, TaskCheck, worst_first

_SHOWN = 20  # tasks, unless all are asked for


@dataclass(frozen=True, slots=True)
class TaskSetReport:
    """A set's checks in its order. `train` and `held_out` count tasks, `programs` what was run for them in `seconds`;
    `rejected` are rows that gave no task. With `everything`, the text names all tasks and notes."""

    source: str
    train: int
    held_out: int
    checks: tuple[TaskCheck, ...]
    programs: int
    seconds: float
    level: str
    rejected: tuple[str, ...] = ()
    everything: bool = False

    @property
    def findings(self) -> list[Finding]:
        """All of them."""
        return [finding for check in self.checks for finding in check.findings]

    @property
    def good(self) -> bool:
        """No error and no warning; notes may be there."""
        return not self.rejected and all(finding.level == "note" for finding in self.findings)

    def counts(self) -> dict[str, int]:
        """Tasks that each kind of finding was made on."""
        found = Counter(kind for check in self.checks for kind in {finding.kind for finding in check.findings})
        return {kind: found[kind] for kind in KINDS if found[kind]}

    def mutants(self) -> dict[str, int]:
        """Those of all tasks together, by what became of them."""
        each = [asdict(check.mutants) for check in self.checks]
        return {name: sum(one[name] for one in each) for name in ("made", "wrong", "undecided", "visible_only")}

    def to_json(self) -> dict[str, Any]:
        """Schema ascent.tasks.check/1."""
        return {
            "schema": "ascent.tasks.check/1",
            "source": self.source,
            "train": self.train,
            "held_out": self.held_out,
            "programs": self.programs,
            "seconds": round(self.seconds, 3),
            "level": self.level,
            "rejected": list(self.rejected),
            "counts": self.counts(),
            "mutants": self.mutants(),
            "tasks": [
                {**asdict(check), "findings": [{**asdict(each), "level": each.level} for each in check.findings]}
                for check in (*worst_first(self.checks), *(check for check in self.checks if not check.findings))
            ],
        }

    def to_text(self) -> str:
        """For people."""
        return "\n".join(_printable(line) for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield (
            f"{self.source}: {self.train + self.held_out} tasks ({self.train} training, {self.held_out} held out), "
            f"{self.programs} programs run in {self.seconds:.0f} s, level {self.level}"
        )
        yield from (f"error    {row}" for row in self.rejected[: None if self.everything else 5])
        shown = worst_first(self.checks)
        if not self.everything:
            shown = [check for check in shown if check.findings[0].level != "note"]
        for check in shown if self.everything else shown[:_SHOWN]:
            yield ""
            yield f"{check.task_id} ({check.visible} visible and {check.hidden} hidden tests)"
            for finding in check.findings:
                if self.everything or finding.level != "note":
                    yield from _of_finding(finding)
        if not self.everything and len(shown) > _SHOWN:
            yield f"\nand {len(shown) - _SHOWN} more tasks: --all lists them"
        yield ""
        yield from self._summary()

    def _summary(self) -> Iterator[str]:
        if self.rejected:
            yield f"{len(self.rejected):5} rows can't be used"
        for kind, count in self.counts().items():
            yield f"{count:5} tasks  {KINDS[kind]:<8} {kind}"
        total = self.mutants()
        if total["made"]:
            yield (
                f"{total['made']} programs with one change: {_share(total['wrong'], total['made'])} are wrong and pass "
                f"all tests, {_share(total['undecided'], total['made'])} pass and may be right, "
                f"{_share(total['visible_only'], total['made'])} pass the visible tests alone"
            )
        yield "no errors or warnings" if self.good else "docs/tasks.md says what each kind means"


def _of_finding(finding: Finding) -> Iterator[str]:
    yield f"  {finding.level:<8} {finding.kind}: {finding.what}"
    yield f"           to do: {finding.add}"
    yield from (f"             {each}" for each in finding.evidence)


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})"


def _printable(text: str) -> str:
    """Without the characters by which a task could steer the terminal."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in text)
