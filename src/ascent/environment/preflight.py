"""The fast checks before a run, and the record of what it ran on."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent.environment import checks, machine, matrix
from ascent.environment.finding import Finding
from ascent.environment.inventory import Environment

# What may stop a run. The rest is for `ascent doctor`: it can't fail a run that is about to start.
_STOPPING = ("A1", "A2", "A3", "A4", "A5")


@dataclass(frozen=True)
class Preflight:
    """What the fast checks found. ``errors`` stop a run unless the user insists."""

    environment: Environment
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that stop a run."""
        return tuple(each for each in self.findings if each.level == "error" and each.rule.startswith(_STOPPING))

    @property
    def line(self) -> str:
        """One line for the console."""
        warnings = sum(each.level == "warning" for each in self.findings)
        if self.errors:
            counts = f"{len(self.errors)} errors, {warnings} warnings"
            return f"preflight: {counts} ({self.seconds:.1f} s); ascent doctor shows all"
        rest = f", {warnings} warnings (ascent doctor shows them)" if warnings else ""
        return f"preflight: this machine can run it{rest} ({self.seconds:.1f} s)"


def preflight(
    environment: Environment | None = None,
    *,
    need_free_bytes: int | None = None,
    sleep_mode: bool | None = None,
    weight_updates: bool | None = None,
    graph_mode: bool | None = None,
    server_mode: bool | None = None,
    trainer_devices: tuple[int, ...] = (),
    server_devices: tuple[int, ...] = (),
) -> Preflight:
    """Run the fast checks for a run of this kind; the machine is inspected unless an ``environment`` is given.

    Memory in bytes on each visible device, devices as indices into the enumeration. Takes under a second.
    """
    begun = time.monotonic()
    environment = environment or machine.inspect()
    purpose = checks.Purpose(
        sleep_mode=sleep_mode,
        weight_updates=weight_updates,
        graph_mode=graph_mode,
        server_mode=server_mode,
        need_free_bytes=need_free_bytes,
        trainer_devices=trainer_devices,
        server_devices=server_devices,
    )
    found = tuple(checks.run(environment, purpose))
    return Preflight(environment, found, time.monotonic() - begun)


def environment_json(environment: Environment, findings: tuple[Finding, ...] = ()) -> dict[str, Any]:
    """The content of a run directory's `environment.json`."""
    judgement = matrix.judge(environment)
    return {
        "schema": "ascent.environment/1",
        "environment": environment.as_dict(),
        "row": judgement.row.vllm_ascend if judgement.row and judgement.kind == "fits" else None,
        "findings": [finding.as_dict() for finding in findings if finding.level != "ok"],
    }


def write_environment(folder: Path, checked: Preflight) -> Path:
    """Write `environment.json` into a run directory, by rename so that a kill leaves a whole file or none."""
    file = folder / "environment.json"
    draft = folder / f".environment.json.{os.getpid()}"
    content = environment_json(checked.environment, checked.findings)
    draft.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", "utf-8")
    draft.replace(file)
    return file
