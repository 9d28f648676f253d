"""At which distance is the difference of two gradients the Hessian's product? Found by measuring.

Too near, rounding drowns the difference; too far, it is of another place. Where that is depends on the precision of the
passes, on the model and on how far it is trained. So the difference is taken at several distances, as training computes
it, and compared with the one that float32 gives at a small distance. What counts is the cosine of the two: the length
of the step that is really made along the gradient doesn't show it.

Distances are in units of the norm of the weights that are moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ascent.algorithms.gradient_penalty.moving import clear_gradients, moved, take_gradients
from ascent.algorithms.gradient_penalty.vectors import cosine, norm

REFERENCE = 3e-6  # of float32: nearer, its rounding shows; there it is off by about a hundredth
RADII = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
LEAST_COSINE = 0.8

# (whether in float32) -> nothing; gradients of a few rows are added to the parameters'
Pass = Callable[[bool], None]


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found. `radius` is the best, `cosine` its difference's with float32's, `opposite` that of the difference
    at minus the radius (-1 where both are exact; in bfloat16 it never comes near). `cosines` are of all radii."""

    radius: float
    cosine: float
    opposite: float
    cosines: tuple[tuple[float, float], ...]


def probe(
    make: Pass,
    trained: Sequence[nn.Parameter],
    is_moved: Sequence[bool],
    *,
    full_precision: bool,
    radii: Sequence[float] = RADII,
    reference: float = REFERENCE,
) -> Probe | None:
    """The best of `radii`; None where the rows have no gradient, or one that isn't finite. Collective.

    `make` gives the gradients of the same few rows each time; `full_precision` says that training computes in float32
    anyway. `trained` have no gradients now, and none afterwards; those that `is_moved` marks are moved.
    """
    make(False)
    usual = take_gradients(trained)
    places = [place for place, each in enumerate(is_moved) if each]
    weights, direction = [trained[place] for place in places], [usual[place] for place in places]
    length = norm(direction)
    if not math.isfinite(length) or length == 0.0:
        return None
    unit = norm(weights) / length
    exact = usual if full_precision else _gradients(make, trained, precise=True)

    def difference(radius: float, start: Sequence[Tensor], *, precise: bool) -> list[Tensor]:
        with moved(weights, direction, radius * unit):
            there = _gradients(make, trained, precise=precise)
        for one, other in zip(there, start, strict=True):
            one.sub_(other)
        return there

    expected = difference(reference, exact, precise=True)
    del exact
    cosines = [(radius, cosine(difference(radius, usual, precise=False), expected)) for radius in radii]
    best, found = max(cosines, key=lambda each: each[1])
    opposite = cosine(difference(-best, usual, precise=False), expected)
    return Probe(best, found, opposite, tuple(cosines))


def _gradients(make: Pass, trained: Sequence[nn.Parameter], *, precise: bool) -> list[Tensor]:
    clear_gradients(trained)
    make(precise)
    return take_gradients(trained)
