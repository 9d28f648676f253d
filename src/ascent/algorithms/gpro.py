"""GPRO (Gradient Penalty Reward Optimization): GRPO's loss with a penalty on the norm of its gradient.

    g' = g + c (∇L(θ + s g) - g)          g = ∇L(θ), of the whole optimizer step over all ranks, before clipping

The difference of two gradients is s times the Hessian's product with g, which is what a penalty on ‖g‖ adds to the
gradient. Of what size is said in one of three forms:

    norm      λ‖g‖         s = r/‖g‖    c = α = λ/r          Zhao et al., arXiv 2202.03599; α = 1 is SAM, 2010.01412
    squared   γ/2 ‖g‖²     s = ε        c = γ/ε              arXiv 2602.18037, after 2210.02720
    share     as `norm`    s = r/‖g‖    c so that ‖c (∇L(θ + s g) - g)‖ is a set share of ‖g‖

A policy that optimizes a reward which is not quite what is meant tends to end where small changes of the weights change
the reward much; the penalty prefers places where they don't. docs/gpro.md says what is known of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import pydantic

from ascent.algorithms.gradient_penalty.settings import Form, Parameters, PenaltySettings
from ascent.config.sections import AlgorithmSection

if TYPE_CHECKING:
    from torch import Tensor

    from ascent.algorithms.base import Adjustment

LONG_NAME = "GPRO (Gradient Penalty Reward Optimization: GRPO with a penalty on the norm of its gradient)"
_USUAL_SHARE = 1.0


class GPRO(AlgorithmSection):
    """TRL's loss, and a penalty on the norm of its gradient. TRL's settings are fields of `trainer`.

    gradient_penalty_form: see above.
    gradient_penalty_strength: α of `norm`, γ of `squared`, the share of `share` (1.0 unless given). 0: no penalty.
    gradient_penalty_weight: the field's own setting, short for form `norm` with α of this value.
    gradient_penalty_radius: r of `norm` and `share`, ε of `squared`; "auto": found by measuring.
    gradient_penalty_parameters: which weights are moved to take the second gradient: all that are trained, all but the
        token embeddings and the output head, or those of the norm layers.
    gradient_penalty_every: only each so many optimizer steps have the penalty.
    gradient_penalty_fraction: the second gradient is taken of this share of the rows.
    """

    name: Literal["gpro"] = "gpro"
    gradient_penalty_form: Form | None = None
    gradient_penalty_strength: float | None = pydantic.Field(None, ge=0)
    gradient_penalty_weight: float | None = pydantic.Field(None, ge=0)
    gradient_penalty_radius: Literal["auto"] | float = "auto"
    gradient_penalty_parameters: Parameters = "all"
    gradient_penalty_every: int = pydantic.Field(1, ge=1)
    gradient_penalty_fraction: float = pydantic.Field(1.0, gt=0, le=1)

    @pydantic.field_validator("gradient_penalty_radius")
    @classmethod
    def _is_a_length(cls, radius: Any) -> Any:
        if radius != "auto" and not (math.isfinite(radius) and radius > 0):
            raise ValueError("should be 'auto' or a length greater than 0")
        return radius

    @pydantic.model_validator(mode="after")
    def _names_one_penalty(self) -> GPRO:
        form, strength, weight = (
            self.gradient_penalty_form,
            self.gradient_penalty_strength,
            self.gradient_penalty_weight,
        )
        if weight is not None and (strength is not None or form not in (None, "norm")):
            raise ValueError(
                "gradient_penalty_weight is short for gradient_penalty_form='norm' with that strength; it contradicts "
                "gradient_penalty_form and gradient_penalty_strength: keep one of them"
            )
        if form in ("norm", "squared") and strength is None and weight is None:
            raise ValueError(f"gradient_penalty_form={form!r} needs a gradient_penalty_strength")
        return self

    @property
    def form(self) -> Form:
        """The form that holds."""
        return self.gradient_penalty_form or ("share" if self.gradient_penalty_weight is None else "norm")

    @property
    def strength(self) -> float:
        """The strength that holds."""
        given = (self.gradient_penalty_weight, self.gradient_penalty_strength)
        return next((value for value in given if value is not None), _USUAL_SHARE)

    @property
    def penalty(self) -> PenaltySettings:
        """All that holds."""
        return PenaltySettings(
            self.form,
            self.strength,
            self.gradient_penalty_radius,
            self.gradient_penalty_parameters,
            self.gradient_penalty_every,
            self.gradient_penalty_fraction,
        )

    @property
    def couples_rows(self) -> bool:
        """See Algorithm. The loss of a row is TRL's; the gradients that are compared are of the whole step."""
        return False

    def loss(self, micro_batch: Mapping[str, Any], trl_loss: Callable[[], Tensor]) -> Tensor:
        """See Algorithm."""
        del micro_batch
        return trl_loss()

    def adjustment(self, trainer: Any, tell: Callable[[str], None]) -> Adjustment | None:
        """See Algorithm. None with strength 0, which is GRPO."""
        from ascent.algorithms.gradient_penalty.support import check
        from ascent.algorithms.gradient_penalty.update import GradientPenalty

        tell(f"algorithm: {LONG_NAME}; {self.described()}")
        if self.strength == 0:
            return None
        check(self.penalty, trainer)
        return GradientPenalty(self.penalty, tell)

    def described(self) -> str:
        """What the settings ask for, in words."""
        if self.strength == 0:
            return "strength 0: no penalty, GRPO"
        meant = {
            "norm": "the difference of the gradients times {:g}",
            "squared": "a penalty of {:g} / 2 x the squared norm",
            "share": "the penalty's part is {:g} x the gradient's norm",
        }[self.form].format(self.strength)
        said = f"form {self.form}: {meant}, radius {self.gradient_penalty_radius}"
        if self.gradient_penalty_weight is not None:
            said += (
                f". gradient_penalty_weight={self.gradient_penalty_weight:g} is alpha of the form `norm`: at a radius "
                "where the difference of gradients is exact it changes the update by about a thousandth (docs/gpro.md)"
            )
        return said
