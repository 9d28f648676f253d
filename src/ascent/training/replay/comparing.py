"""Two repetitions of one step compared: log-probabilities, and the gradients of each module."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ascent.training.replay.repeated import Repeated


@dataclass(frozen=True, slots=True)
class ModuleDifference:
    """A module's own parameters. `norm` and `reference_norm` are of their gradients, `difference` is the norm of what
    lies between them by `reference_norm`, `cosine` between the two. NaN where one of them isn't finite."""

    module: str
    norm: float
    reference_norm: float
    difference: float
    cosine: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """`logps_mean` and `logps_max` are absolute differences of the tokens in the loss, in nats, where both are finite;
    `logps_not_finite` counts tokens where only the first repetition is not. `modules` begin with what differs most."""

    logps_mean: float
    logps_max: float
    logps_not_finite: int
    modules: tuple[ModuleDifference, ...]

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


def compare(tried: Repeated, reference: Repeated) -> Comparison:
    """`tried`, on the device, against `reference`."""
    mine, theirs = (torch.cat([*each.logps.values(), torch.zeros(0)]) for each in (tried, reference))
    both = mine.isfinite() & theirs.isfinite()
    apart = (mine - theirs)[both].abs()
    by_module: dict[str, list[str]] = defaultdict(list)
    for name in tried.parameters:
        if name in reference.parameters:
            by_module[name.rpartition(".")[0]].append(name)
    modules = [_module(module, names, tried, reference) for module, names in by_module.items()]
    modules.sort(key=lambda each: -math.inf if math.isnan(each.difference) else -each.difference)
    return Comparison(
        logps_mean=float(apart.mean()) if apart.numel() else 0.0,
        logps_max=float(apart.max()) if apart.numel() else 0.0,
        logps_not_finite=int((~mine.isfinite() & theirs.isfinite()).sum()),
        modules=tuple(modules),
    )


def _module(module: str, names: list[str], tried: Repeated, reference: Repeated) -> ModuleDifference:
    squares = torch.zeros(4, dtype=torch.float64)
    for name in names:
        mine, theirs = tried.gradient(name).double(), reference.gradient(name).double()
        squares += torch.stack(
            [mine.square().sum(), theirs.square().sum(), (mine - theirs).square().sum(), (mine * theirs).sum()]
        )
    norm, reference_norm, difference = (math.sqrt(each) for each in squares[:3].tolist())
    product = norm * reference_norm
    return ModuleDifference(
        module,
        norm,
        reference_norm,
        difference / reference_norm if reference_norm else (0.0 if not difference else math.inf),
        float(squares[3]) / product if product else math.nan,
    )
