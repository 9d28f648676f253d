"""What a check found. Standard library only, like everything in this package."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["ok", "note", "warning", "error"]
SEVERITY: dict[str, int] = {"error": 0, "warning": 1, "note": 2, "ok": 3}


@dataclass(frozen=True)
class Finding:
    """One statement about a machine.

    ``level`` is ``ok`` (checked and right), ``note`` (worth knowing), ``warning`` (will hurt in some uses) or
    ``error`` (will fail). ``what`` says what is the case, ``why`` its consequence, ``mend`` the steps that
    cure it in their order, ``evidence`` the readings it rests on, ``rule`` the number of its page in
    ``docs/rules.md``. ``sure`` is False where a reading of a pasted report was ambiguous.
    """

    level: Level
    rule: str
    what: str
    why: str = ""
    mend: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    sure: bool = True

    def as_dict(self) -> dict[str, Any]:
        """The finding as plain JSON data."""
        return asdict(self)


def by_severity(findings: list[Finding]) -> list[Finding]:
    """The findings, errors first; the order within a level is kept."""
    return sorted(findings, key=lambda finding: SEVERITY[finding.level])


def exit_code(findings: list[Finding]) -> int:
    """0 when nothing is worse than a note, 1 when there is a warning or an error."""
    return 1 if any(finding.level in ("error", "warning") for finding in findings) else 0
