"""GPROConfig: GRPOConfig with the settings of the gradient penalty."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pydantic

from ascent.algorithms.base import Algorithm
from ascent.algorithms.gpro import GPRO
from ascent.algorithms.grpo import GRPO
from ascent.errors import InputError
from ascent.training.arguments import GRPOConfig

_OF_PENALTY = tuple(name for name in GPRO.model_fields if name != "name")


@dataclass
class GPROConfig(GRPOConfig):
    """`ascent.GRPOConfig` for GPRO (Gradient Penalty Reward Optimization). What each setting means stands at
    `ascent.algorithms.gpro.GPRO`; docs/gpro.md says what they do and cost."""

    gradient_penalty_form: str | None = field(
        default=None, metadata={"help": "What the penalty is of: norm, squared or share (default)."}
    )
    gradient_penalty_strength: float | None = field(
        default=None, metadata={"help": "alpha of norm, gamma of squared, the share of share (there 1 by default)."}
    )
    gradient_penalty_weight: float | None = field(
        default=None, metadata={"help": "Short for form norm with this alpha, such as the field's 0.15."}
    )
    gradient_penalty_radius: float | str = field(
        default="auto", metadata={"help": "How far weights are moved for the second gradient: a length, or auto."}
    )
    gradient_penalty_parameters: str = field(
        default="all", metadata={"help": "Weights that are moved: all, without_embeddings or norms."}
    )
    gradient_penalty_every: int = field(default=1, metadata={"help": "Only each so many steps have the penalty."})
    gradient_penalty_fraction: float = field(
        default=1.0, metadata={"help": "The second gradient is taken of this share of the rows."}
    )


def algorithm_of(args: Any) -> Algorithm:
    """The algorithm that a trainer's arguments ask for: GPRO if they are GPROConfig's.

    Raises InputError for settings of the penalty that can't be had.
    """
    if not isinstance(args, GPROConfig):
        return GRPO()
    try:
        return GPRO(**{name: getattr(args, name) for name in _OF_PENALTY})
    except pydantic.ValidationError as error:
        raise InputError("; ".join(_said(each) for each in error.errors()), "docs/gpro.md has the settings.") from None


def _said(problem: Any) -> str:
    name = next((str(part) for part in problem["loc"] if str(part) in _OF_PENALTY), "")
    said = str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "should be")
    return f"{name}={problem['input']!r}: {said}" if name else said
