"""What a self-test found, as text to paste into an issue and as one JSON object."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Outcome = Literal["passed", "failed", "skipped"]
_WIDTH = 100


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check. `what` is one sentence: what was seen, or why it was skipped; `detail` the end of a failed process's
    output and its diagnosis."""

    name: str
    outcome: Outcome
    seconds: float
    what: str
    figures: Mapping[str, float] = field(default_factory=dict)
    detail: str = ""

    @property
    def head(self) -> str:
        """Outcome, name and time."""
        return f"{self.outcome:<8} {self.name} ({self.seconds:.1f} s)"

    def to_text(self) -> str:
        """One paragraph; figures and detail are indented below it."""
        lines = textwrap.wrap(f"{self.head}: {self.what}", _WIDTH, subsequent_indent=" " * 9)
        if self.figures:
            said = ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items())
            lines += textwrap.wrap(said, _WIDTH, initial_indent=" " * 9, subsequent_indent=" " * 9)
        lines += [f"         | {line}" for line in self.detail.splitlines()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class SelftestReport:
    """All checks of one machine."""

    version: str
    device: str
    machine: str
    findings: str
    results: tuple[CheckResult, ...]

    @property
    def good(self) -> bool:
        """Whether nothing failed."""
        return not any(result.outcome == "failed" for result in self.results)

    def to_text(self) -> str:
        """The whole report."""
        head = f"ascent {self.version} selftest --device {self.device}"
        parts = [head, "=" * len(head), self.machine, self.findings, ""]
        return "\n".join([*parts, *(result.to_text() for result in self.results), "", self.verdict()])

    def verdict(self) -> str:
        """How many checks passed, failed and were skipped."""
        counts = [
            f"{number} {outcome}"
            for outcome in ("passed", "failed", "skipped")
            if (number := sum(result.outcome == outcome for result in self.results))
        ]
        return f"{'good' if self.good else 'NOT GOOD'}: {', '.join(counts)}"

    def to_json(self) -> dict[str, Any]:
        """One object for `--json`."""
        return {"schema": "ascent.selftest/1", "good": self.good, **asdict(self)}
