"""The rule g' = g + c (∇L(θ + s g) - g): what s and c are, in each form (see `ascent.algorithms.gpro`)."""

from __future__ import annotations

from dataclasses import dataclass

from ascent.algorithms.gradient_penalty.settings import Form

# The second gradient has at most so many times the first one's norm. Tokens of negative advantage aren't clipped above
# ratio 1 + ε, so it can be much larger (42 times was seen), and it would then be all of the update.
LARGEST_RATIO = 2.0


@dataclass(frozen=True, slots=True)
class Rule:
    """A form with its strength: α of `norm`, γ of `squared`, the share of `share`."""

    form: Form
    strength: float

    def step(self, radius: float, norm: float) -> float:
        """s, for a given radius: its length in weights for `norm` and `share`, ε itself for `squared`. `norm` is that
        of the gradient along which the weights are moved, above 0."""
        return radius if self.form == "squared" else radius / norm

    def coefficient(self, step: float, norm: float, difference: float) -> float:
        """c, for s = `step`. `norm` is that of the whole first gradient, `difference` that of ∇L(θ + s g) - g."""
        if self.form == "norm":
            return self.strength
        if self.form == "squared":
            return self.strength / step
        return self.strength * norm / difference if difference else 0.0


def bound(norm: float, second: float) -> float:
    """What the second gradient, of norm `second`, is multiplied with; `norm` is the first one's."""
    return min(1.0, LARGEST_RATIO * norm / second) if second else 1.0
