"""A step with NaN on this card: is it skipped, is its place named, and does an overflow show as infinity?"""

from __future__ import annotations

import json
from pathlib import Path

from ascent.host.children import run_child
from ascent.selftest.report import CheckResult
from ascent.selftest.training_checks import failed


def bad_step(folder: Path, *, on_cpu: bool) -> CheckResult:
    """Train the tiny policy for three steps, the second of which has NaN planted in a layer."""
    name = "a bad step is skipped"
    ended = run_child(["ascent.selftest.bad_step_child", str(folder)], folder / "bad-step.log", 300, on_cpu=on_cpu)
    file = folder / "bad-step.json"
    if ended.code != 0 or not file.is_file():
        return failed(name, ended, f"exit code {ended.code}")
    found = json.loads(file.read_text(encoding="utf-8"))
    wrong = [
        what
        for what, is_so in (
            ("weights are not finite afterwards", not found["finite"]),
            (f"{found['bad_steps']} steps were skipped, of one that was bad", found["bad_steps"] != 1),
            (f"{found['where'] or 'nothing'} was named, NaN was in {found['planted']}", not found["named"]),
            ("float16 products that overflow don't give infinity: no guard sees them", not found["infinite"]),
        )
        if is_so
    ]
    what = "; ".join(wrong) or "weights stay as they were, the layer is named, an overflow shows as infinity"
    figures = {"guard's share of a step": found["share"]}
    return CheckResult(name, "failed" if wrong else "passed", ended.seconds, what, figures)
