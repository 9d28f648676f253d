"""Sequences of one row on this card: do they see each other, and are they what they are in padded rows?"""

from __future__ import annotations

import json
from pathlib import Path

from ascent.host.children import run_child
from ascent.rollout.weights.verify.expected_differences import expected_difference
from ascent.selftest.report import CheckResult
from ascent.selftest.training_checks import failed

_LOGPS = expected_difference("bfloat16", "bfloat16").usual  # mean, of the same weights
_GRADIENT = 0.05  # relative


def packing(folder: Path, *, on_cpu: bool) -> CheckResult:
    """Packed sequences against TRL's padded rows, with flash attention, on the tiny policy."""
    name = "rows without padding"
    if on_cpu:
        return CheckResult(name, "skipped", 0.0, "transformers has no flash attention on CPU")
    ended = run_child(["ascent.selftest.packing_child", str(folder)], folder / "packing.log", 300, on_cpu=on_cpu)
    file = folder / "packing.json"
    if ended.code != 0 or not file.is_file():
        return failed(name, ended, f"exit code {ended.code}")
    found = json.loads(file.read_text(encoding="utf-8"))
    if "absent" in found:
        return CheckResult(name, "skipped", ended.seconds, found["absent"])
    apart = found.pop("apart")
    if apart is not None:
        return CheckResult(name, "failed", ended.seconds, apart, found)
    good = found["logps"] <= _LOGPS and found["gradient"] <= _GRADIENT
    what = f"sequences keep apart to the last bit; mean difference to padded rows at most {_LOGPS:g}, of the gradient "
    return CheckResult(name, "passed" if good else "failed", ended.seconds, what + f"{_GRADIENT:.0%}", found)
