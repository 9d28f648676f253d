"""Whether a rehearsal finds what a run would take on this device: its worst batch, measured beside its plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ascent.host.children import run_child
from ascent.selftest.report import CheckResult
from ascent.selftest.training_checks import failed, write_config
from ascent.training.rehearsal.rehearsing import FILE

_NAME = "rehearsal"
_ADVISED = (0, 1)  # exit codes of a rehearsal that came to its end: what it advises is of no account here


def rehearsal(folder: Path, *, on_cpu: bool) -> CheckResult:
    """Two steps of a run, and the batch with the longest sequences: it is tried, and its memory measured."""
    config = write_config(folder, engine="transformers", steps=3, save_steps=1000)
    arguments = ["train", str(config), "--rehearse", "1m", "tracking.name=small", "--force"]
    ended = run_child(["ascent", *arguments], folder / "train.log", 300, on_cpu=on_cpu)
    file = folder / "runs" / "small-rehearsal" / FILE
    if ended.code not in _ADVISED or not file.is_file():
        return failed(_NAME, ended, f"exit code {ended.code}")
    worst: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["worst_batch"] or {}
    if worst.get("state") != "done" or not worst["peak"]:
        return CheckResult(_NAME, "failed", ended.seconds, f"its worst batch was not measured: {worst}")
    figures = {"MiB taken": worst["peak"] / 2**20, "MiB planned": worst["planned"] / 2**20, "seconds": worst["seconds"]}
    what = f"the worst batch, {worst['rows']} sequences of {worst['prompt']} + {worst['completion']} tokens, is tried"
    return CheckResult(_NAME, "passed", ended.seconds, what, figures)
