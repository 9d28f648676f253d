"""An optimizer step's gradients get GPRO's penalty: a second gradient is taken at moved weights, and combined.

first passes (TRL's)             .grad = g
radius, now and then             a few passes over one micro-batch (`probe`)
weights moved by s g             the same passes again: .grad = ∇L(θ + s g), then bounded
weights put back, bit by bit     .grad = g + c (∇L(θ + s g) - g)
clipping, optimizer              as ever
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ascent.algorithms.base import Part, Passes
from ascent.algorithms.gradient_penalty.moving import clear_gradients, gradients_aside, moved, take_gradients
from ascent.algorithms.gradient_penalty.parameters import moved_parameters
from ascent.algorithms.gradient_penalty.probe import LEAST_COSINE, Probe, probe
from ascent.algorithms.gradient_penalty.rule import Rule, bound
from ascent.algorithms.gradient_penalty.settings import PenaltySettings
from ascent.algorithms.gradient_penalty.vectors import dot, locals_of, norm
from ascent.errors import InputError

PROBE_EVERY = 100  # optimizer steps from one search of the radius to the next
_PREFIX = "gradient_penalty/"


@dataclass(frozen=True, slots=True)
class _Weights:
    """The parameters that have a gradient, and which of them are moved."""

    trained: list[nn.Parameter]
    is_moved: list[bool]

    def of_moved(self, vector: Sequence[Tensor]) -> list[Tensor]:
        return [part for part, each in zip(vector, self.is_moved, strict=True) if each]


class GradientPenalty:
    """See Adjustment. Keeps the radius that was found."""

    def __init__(self, settings: PenaltySettings, tell: Callable[[str], None]) -> None:
        """`tell` takes sentences to the user."""
        self._settings, self._tell = settings, tell
        self._rule = Rule(settings.form, settings.strength)
        self._found: Probe | None = None
        self._next_probe = 0  # the first step that looks for the radius

    @property
    def fraction(self) -> float:
        """See Adjustment."""
        return self._settings.fraction

    def __call__(self, model: nn.Module, passes: Passes, step: int) -> Mapping[str, float]:
        """See Adjustment. A gradient that is zero or not finite stays as it is. Raises InputError where no radius gives
        a difference that is one, or no moved weight is trained."""
        if step % self._settings.every:
            return {}
        began = time.perf_counter()
        trained = [each for each in model.parameters() if each.requires_grad and each.grad is not None]
        with gradients_aside(trained) as first:
            length = norm(first)
            if not math.isfinite(length) or length == 0.0:
                _set(trained, first)
                return {_PREFIX + "skipped": 1.0}
            found = self._penalize(_Weights(trained, self._is_moved(model, trained)), passes, first, length, step)
        found["seconds"] = time.perf_counter() - began
        return {_PREFIX + name: value for name, value in found.items()}

    def _is_moved(self, model: nn.Module, trained: Sequence[nn.Parameter]) -> list[bool]:
        named = moved_parameters(model, self._settings.parameters)
        is_moved = [parameter in named for parameter in trained]
        if not any(is_moved):
            raise InputError(
                f"gradient_penalty_parameters={self._settings.parameters}: this training changes no such weights",
                "With adapters, take gradient_penalty_parameters=all, which are the adapters.",
            )
        return is_moved

    def _penalize(
        self, weights: _Weights, passes: Passes, first: list[Tensor], length: float, step: int
    ) -> dict[str, float]:
        """Give the parameters, which have no gradients, those with the penalty; what was seen."""
        scale, direction = passes.gradient_scale, weights.of_moved(first)
        along = (length if all(weights.is_moved) else norm(direction)) / scale
        found = {"norm": length / scale, "skipped": 0.0} | self._look_for_radius(weights, passes, step)
        stride = self._stride(weights, along)
        if along == 0.0 or stride is None:
            _set(weights.trained, first)
            return {**found, "skipped": 1.0}
        with moved(weights.of_moved(weights.trained), direction, stride / scale):
            said = passes.again()
        second = take_gradients(weights.trained)
        base, share = _repeated(weights.trained, first, passes.part)
        found |= {name: said[name] for name in ("kl", "clip_ratio/region_mean") if name in said}
        found |= {"radius": stride * along}
        return found | self._combine(weights.trained, first, length, base, second, share, stride)

    def _combine(
        self,
        trained: Sequence[nn.Parameter],
        first: list[Tensor],
        length: float,
        base: Sequence[Tensor],
        second: list[Tensor],
        share: float,
        stride: float,
    ) -> dict[str, float]:
        """Set the gradients: `first`, of norm `length`, and c times what `second` differs from `base`, which are of a
        `share` of the rows. Changes `second`."""
        before, after = length if base is first else norm(base), norm(second)
        if not math.isfinite(after):
            _set(trained, first)
            return {"not_finite": 1.0, "share": 0.0}
        kept = bound(before, after)
        along = dot(base, second)
        with torch.no_grad():
            for new, old in zip(locals_of(second), locals_of(base), strict=True):
                new.mul_(kept).sub_(old).div_(share)
        difference = norm(second)
        factor = self._rule.coefficient(stride, length, difference)
        with torch.no_grad():
            for new, old in zip(locals_of(second), locals_of(first), strict=True):
                new.mul_(factor).add_(old)
        _set(trained, second)
        return {
            "cosine": along / (before * after) if before and after else 0.0,
            "ratio": after / before if before else 0.0,
            "bounded": float(kept < 1.0),
            "share": abs(factor) * difference / length,
            "not_finite": 0.0,
        }

    def _stride(self, weights: _Weights, along: float) -> float | None:
        """s; None while no radius is known."""
        radius = self._settings.radius
        if radius != "auto":
            return self._rule.step(radius, along) if along else None
        if self._found is None or not along:
            return None
        return self._found.radius * norm(weights.of_moved(weights.trained)) / along

    def _look_for_radius(self, weights: _Weights, passes: Passes, step: int) -> dict[str, float]:
        if self._settings.radius != "auto" or step < self._next_probe:
            return {}

        def make(precise: bool) -> None:
            passes.again(one=True, full_precision=precise)

        found = probe(make, weights.trained, weights.is_moved, full_precision=passes.is_full_precision)
        clear_gradients(weights.trained)
        if found is None:  # these rows have no gradient: the next step's may have
            return {}
        self._next_probe = step + PROBE_EVERY
        seen = {"probe/cosine": found.cosine, "probe/opposite": found.opposite, "probe/radius": found.radius}
        if found.cosine >= LEAST_COSINE:
            self._found = found
        elif self._found is None:
            raise InputError(_no_radius(found), _MEND)
        else:
            self._tell(f"note: {_no_radius(found)}; the radius of before is kept")
        return seen


_MEND = (
    "Let the passes compute in float32 (trainer.bf16=false), train adapters (model.lora), or move the norm layers' "
    "weights only (gradient_penalty_parameters=norms)."
)


def _no_radius(found: Probe) -> str:
    tried = ", ".join(f"{value:.2f} at {radius:g}" for radius, value in found.cosines)
    return (
        "gradient_penalty_radius=auto: at no distance is the difference of two gradients what float32 gives: its "
        f"cosine is {tried} (of the weights' norm), and {LEAST_COSINE} is needed"
    )


def _repeated(trained: Sequence[nn.Parameter], first: list[Tensor], part: Part | None) -> tuple[list[Tensor], float]:
    """The first gradient of the rows whose passes are made again, and their share of the step."""
    if part is None:
        return first, 1.0
    known = [part.gradients.get(parameter) for parameter in trained]
    pairs = zip(trained, known, strict=True)
    return [torch.zeros_like(parameter) if given is None else given for parameter, given in pairs], part.share


def _set(trained: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> None:
    for parameter, gradient in zip(trained, gradients, strict=True):
        parameter.grad = gradient
