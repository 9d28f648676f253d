"""Repeats a bad step of a run in processes of their own, and says whether device, precision or model is to blame.

Each repetition is a process: a device that a kernel has broken doesn't take the report with it, and torch trains on one
kind of device in one process.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent import devices
from ascent.errors import InputError
from ascent.json_numbers import in_words
from ascent.tracking import run_directory
from ascent.training.numerics.finding import Finding
from ascent.training.numerics.kept_step import KeptStep, open_step
from ascent.training.replay.comparing import Comparison, compare
from ascent.training.replay.repeated import Repeated, load

_SHOWN = 8  # modules
_ALIKE = 0.05  # relative difference of a module's gradient that rounding may make


@dataclass(frozen=True, slots=True)
class Replay:
    """`tried` is the repetition that was asked for; `reference` that on CPU in float32, None where it is the same."""

    step: int
    kept: Finding
    tried: Repeated
    reference: Repeated | None
    comparison: Comparison | None

    @property
    def good(self) -> bool:
        """Whether everything is finite, and the two agree."""
        alike = self.comparison is None or all(each.difference <= _ALIKE for each in self.comparison.modules)
        return _finite(self.tried) and alike

    def verdict(self) -> str:
        """One sentence."""
        if self.reference is not None and not _finite(self.tried) and _finite(self.reference):
            return (
                f"{self.tried.device} in {self.tried.computing} gives what is not finite, CPU in float32 doesn't: look "
                "at the kernel or the precision there, not at the model"
            )
        if not _finite(self.tried):
            everywhere = " on CPU in float32 too" if self.reference is not None else ""
            return f"it repeats: the weights and the batch give it{everywhere}"
        if self.kept.kind == "nothing":
            return "everything is finite, as when the run tried it again: suspect the device, its driver, or a race"
        if not self.good:
            return "everything is finite, but gradients differ by more than rounding: see the modules"
        return "everything is finite here: the run's device or software gave something else"

    def to_json(self) -> dict[str, Any]:
        """One object for `--json`."""
        found: dict[str, Any] = in_words(
            {
                "schema": "ascent.replay/1",
                "step": self.step,
                "kept": self.kept.to_json(),
                "verdict": self.verdict(),
                "repeated": _to_json(self.tried),
                "reference": None if self.reference is None else _to_json(self.reference),
                "comparison": None if self.comparison is None else self.comparison.to_json(),
            }
        )
        return found

    def to_text(self) -> str:
        """For people."""
        lines = [f"step {self.step} when the run was in it: {self.kept.sentence()}"]
        for each in (self.tried, self.reference):
            if each is not None:
                lines.append(f"on {each.device} in {each.computing}: {_sentence(each)}")
        if self.comparison is not None:
            lines += _table(self.comparison)
        return "\n".join([*lines, self.verdict()])


def replay(path: Path, step: int, *, device: str | None, dtype: str | None, rank: int | None = None) -> Replay:
    """Repeat a bad step of the run in `path`, on `device` (None: the one of this machine) in `dtype` (None: as the run
    computed), and on CPU in float32. `rank` chooses whose rows; None: those of the process that found something.

    Raises InputError for a step that wasn't kept, weights that weren't, or a repetition that fails.
    """
    kept = open_step(path, step)
    model = _weights(path, kept)
    chosen = kept.rank if rank is None else rank
    if not (kept.folder / f"rank{chosen}.safetensors").is_file():
        raise InputError(f"{kept.folder} has no rows of process {chosen}", f"There were {kept.about['processes']}.")
    on_cpu = (device or devices.kind()) == "cpu"
    if device is not None and device not in ("cpu", devices.kind()):
        raise InputError(f"--device {device}: this machine trains on {devices.kind()}")
    computed = {"bf16": "bfloat16", "fp16": "float16"}.get(kept.about["mixed_precision"], kept.about["dtype"])
    if on_cpu and (dtype or computed) == "float16":
        raise InputError("float16 isn't computed on CPU", "Give --dtype float32 or --dtype bfloat16.")
    with tempfile.TemporaryDirectory(prefix="ascent-replay-") as folder:
        tried = _repeat(kept, model, chosen, dtype or "kept", Path(folder) / "tried", on_cpu=on_cpu)
        reference = None
        if not on_cpu or (dtype or computed) != "float32":
            reference = _repeat(kept, model, chosen, "float32", Path(folder) / "reference", on_cpu=True)
        comparison = None if reference is None else compare(tried, reference)
    return Replay(step, Finding(**kept.about["finding"]), tried, reference, comparison)


def _weights(run: Path, kept: KeptStep) -> Path:
    if kept.weights is not None and kept.weights.is_dir():
        return kept.weights
    before = run / "checkpoints" / f"checkpoint-{kept.about['step'] - 1}"
    if run_directory.is_complete(before):
        return before
    raise InputError(
        f"the weights of step {kept.about['step']} were not kept: that is done for the first bad step of a run, and "
        f"{before} isn't there",
        "Replay the first one; or train with trainer.save_steps: 1 until it happens again.",
    )


def _repeat(kept: KeptStep, model: Path, rank: int, dtype: str, out: Path, *, on_cpu: bool) -> Repeated:
    command = [sys.executable, "-m", "ascent.training.replay.child"]
    arguments = [str(kept.folder.absolute()), str(model.absolute()), str(rank), dtype, str(out)]
    environment: Mapping[str, str] = {**os.environ, **({"ACCELERATE_USE_CPU": "true"} if on_cpu else {})}
    done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not out.is_file():
        where = "on CPU" if on_cpu else f"on {devices.kind()}"
        said = "\n  ".join(done.stderr.strip().splitlines()[-12:])
        raise InputError(f"the step could not be repeated {where} (exit code {done.returncode}):\n  {said}")
    return load(out)


def _finite(repeated: Repeated) -> bool:
    return repeated.finding.kind == "nothing"


def _sentence(repeated: Repeated) -> str:
    return "everything is finite" if _finite(repeated) else repeated.finding.sentence()


def _to_json(repeated: Repeated) -> dict[str, Any]:
    return {
        "device": repeated.device,
        "computing": repeated.computing,
        "finite": _finite(repeated),
        "finding": repeated.finding.to_json(),
        "losses": list(repeated.losses),
    }


def _table(comparison: Comparison) -> list[str]:
    lines = [
        f"log-probabilities differ by {comparison.logps_mean:.3g} on average, {comparison.logps_max:.3g} at most"
        + (f"; {comparison.logps_not_finite} are not finite here" if comparison.logps_not_finite else ""),
        "gradients of modules, what differs most first:   relative difference   cosine   norm here   on CPU",
    ]
    for each in comparison.modules[:_SHOWN]:
        cosine = "-" if math.isnan(each.cosine) else f"{each.cosine:.4f}"
        lines.append(
            f"  {each.module or '(model)':<45} {each.difference:>20.3g} {cosine:>8} {each.norm:>11.3g} "
            f"{each.reference_norm:>8.3g}"
        )
    left = len(comparison.modules) - _SHOWN
    return [*lines, f"  ... and {left} more"] if left > 0 else lines
