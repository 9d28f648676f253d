"""What a repetition of a bad step leaves on the disk for the comparison: log-probabilities and gradients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ascent.training.numerics.finding import Finding

_GRADIENT, _LOGPS, _META = "gradient/", "logps/", "ascent.repeated"


@dataclass(frozen=True, slots=True)
class Repeated:
    """One repetition. `device` and `computing` say where and in what it was computed; `losses` are of the passes."""

    file: Path
    device: str
    computing: str
    losses: tuple[float, ...]
    finding: Finding
    logps: Mapping[str, torch.Tensor]  # pass number -> those of the tokens in the loss, float32
    parameters: tuple[str, ...]

    def gradient(self, parameter: str) -> torch.Tensor:
        """A parameter's gradient, summed over the passes, in its own dtype."""
        with safe_open(self.file, framework="pt", device="cpu") as opened:
            return opened.get_tensor(_GRADIENT + parameter)


def save(
    file: Path,
    *,
    device: str,
    computing: str,
    losses: list[float],
    finding: Finding,
    logps: list[torch.Tensor],
    gradients: Mapping[str, torch.Tensor],
) -> None:
    """Write a repetition."""
    about = {
        "device": device,
        "computing": computing,
        "losses": [str(loss) for loss in losses],  # JSON has no NaN
        "finding": finding.to_json(),
    }
    tensors = {f"{_LOGPS}{number}": each.detach().float().cpu().contiguous() for number, each in enumerate(logps)}
    tensors |= {_GRADIENT + name: each.detach().cpu().contiguous() for name, each in gradients.items()}
    save_file(tensors, file, metadata={_META: json.dumps(about)})


def load(file: Path) -> Repeated:
    """Read it."""
    with safe_open(file, framework="pt", device="cpu") as opened:
        about: dict[str, Any] = json.loads(opened.metadata()[_META])
        names = list(opened.keys())
        logps = {each.removeprefix(_LOGPS): opened.get_tensor(each) for each in names if each.startswith(_LOGPS)}
    return Repeated(
        file,
        about["device"],
        about["computing"],
        tuple(map(float, about["losses"])),
        Finding(**about["finding"]),
        logps,
        tuple(each.removeprefix(_GRADIENT) for each in names if each.startswith(_GRADIENT)),
    )
