"""A bad step as it lies on the disk, in `bad-steps/STEP/` of a run, so that it can be repeated anywhere.

    step.json             what happened and what was found; settings and versions; where its weights lie
    rankN.safetensors     that process's passes: pass 2's `advantages` is `2/advantages`, random states `2/random/...`
    model/                the weights, or the adapter: of the first bad step of a run, and after good ones of none

Nothing in it is pickled: whoever gets such a folder sent may open it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ascent.devices import Randomness
from ascent.errors import InputError
from ascent.training.batches.kept_passes import Pass
from ascent.training.batches.rows import SubBatch
from ascent.training.numerics.finding import Finding

STEP_FILE, MODEL = "step.json", "model"
_META = "ascent.passes"


@dataclass(frozen=True, slots=True)
class KeptStep:
    """One bad step in a folder. `about` is step.json's content."""

    folder: Path
    about: Mapping[str, Any]

    @property
    def weights(self) -> Path | None:
        """The weights with which it was computed, where they were kept."""
        named = self.about["weights"]
        return None if named is None else self.folder.parent / named / MODEL

    @property
    def rank(self) -> int:
        """The process on which something was found."""
        return int(self.about["finding"]["rank"])


def save_passes(file: Path, passes: Sequence[Pass]) -> None:
    """Write a rank's passes. Raises OSError or SafetensorError where the disk doesn't take them."""
    tensors: dict[str, torch.Tensor] = {}
    about: list[dict[str, Any]] = []
    for number, each in enumerate(passes):
        others: dict[str, Any] = {}
        for name, value in each.rows.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{number}/{name}"] = value.detach().to("cpu", copy=True).contiguous()
            elif value is None or isinstance(value, (bool, int, float, str, list)):
                others[name] = value
        for name, state in (("host", each.random.host), ("device", each.random.device)):
            if state is not None:
                tensors[f"{number}/random/{name}"] = state.detach().to("cpu", copy=True)
        rows = each.rows
        about.append(
            {
                "others": others,
                "weight": each.weight,
                "filling": isinstance(rows, SubBatch) and rows.filling,
            }
        )
    save_file(tensors, file, metadata={_META: json.dumps(about)})


def load_passes(file: Path, device: torch.device) -> list[Pass]:
    """A rank's passes, their rows on `device`. Raises InputError for a file that isn't what a run writes."""
    try:
        with safe_open(file, framework="pt", device="cpu") as opened:
            about = json.loads(opened.metadata()[_META])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
        return [_pass(number, each, tensors, device) for number, each in enumerate(about)]
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} is not what a run writes: {type(error).__name__}: {error}") from error


def _pass(number: int, about: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], device: torch.device) -> Pass:
    head = f"{number}/"
    mine = {name.removeprefix(head): value for name, value in tensors.items() if name.startswith(head)}
    rows = {name: value.to(device) for name, value in mine.items() if not name.startswith("random/")}
    random = Randomness(mine["random/host"], mine.get("random/device"))
    return Pass(SubBatch(rows | about["others"], about["weight"], filling=about["filling"]), None, random)


def open_step(run: Path, step: int) -> KeptStep:
    """A bad step of a run. Raises InputError, naming those that there are, where it isn't one."""
    if not run.is_dir():
        raise InputError(f"{run}: no such folder", "Give a run directory such as runs/NAME.")
    folder = run / "bad-steps" / str(step)
    if not (folder / STEP_FILE).is_file():
        kept = sorted(int(path.name) for path in folder.parent.glob("*") if path.name.isdigit())
        there = f"Kept are: {', '.join(map(str, kept))}." if kept else "It kept none."
        raise InputError(f"{run} kept no bad step {step}", there)
    return KeptStep(folder, read_about(folder))


def read_about(folder: Path) -> dict[str, Any]:
    """step.json of a bad step's folder. Raises InputError where it isn't what a run writes."""
    try:
        about: dict[str, Any] = json.loads((folder / STEP_FILE).read_text(encoding="utf-8"))
        if about["schema"] != "ascent.bad_step/1":
            raise ValueError(f"schema {about['schema']!r}")
        Finding(**about["finding"])
        for value in about.get("entropy_bonus", {}).values():
            float(value)
        return about
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / STEP_FILE} is not what a run writes: {error}") from error
