"""Environment -> findings. One file a subject; each check looks at one rule and says nothing where it can't judge."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ascent.environment import rules
from ascent.environment.checks import cann, devices, host, packages, report, settings
from ascent.environment.checks.purpose import Purpose
from ascent.environment.finding import Finding, by_severity
from ascent.environment.inventory import Environment

Check = Callable[[Environment, Purpose], Iterable[Finding]]
CHECKS: tuple[Check, ...] = (
    *report.CHECKS,
    *devices.CHECKS,
    *cann.CHECKS,
    *packages.CHECKS,
    *settings.CHECKS,
    *host.CHECKS,
)

_SOFTWARE_NPU = "torch_npu is a software NPU on host memory: torch's device npu exists, but no card"

__all__ = ["CHECKS", "Purpose", "run"]


def run(environment: Environment, purpose: Purpose | None = None) -> list[Finding]:
    """All findings of a machine for a purpose, errors first."""
    purpose = purpose or Purpose()
    if environment.software_npu:  # the rules of real cards don't hold for it
        kept = {name: package for name, package in environment.packages.items() if name != "torch-npu"}
        return [*run(replace(environment, packages=kept), purpose), rules.found("A214", "note", _SOFTWARE_NPU)]
    return by_severity([finding for check in CHECKS for finding in check(environment, purpose)])
