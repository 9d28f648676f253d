"""The seam of the algorithms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Algorithm(Protocol):
    """Makes an update of scored completions. What it can be set to is its fields, which are the keys of the section
    `algorithm` of a configuration; `name` tells it from the others."""

    @property
    def name(self) -> str:
        """Its key in `ascent.tables.ALGORITHMS`."""
        ...

    @property
    def couples_rows(self) -> bool:
        """Whether the loss of a row depends on other rows of its micro-batch beyond TRL's own divisors, so that a
        micro-batch must stay whole."""
        ...

    def loss(self, micro_batch: Mapping[str, Any], trl_loss: Callable[[], Tensor]) -> Tensor:
        """The loss of one micro-batch, a scalar with a gradient.

        `micro_batch` is what TRL's loss takes (`prompt_ids`, `completion_ids`, `completion_mask` of shape (B, T),
        `advantages` (B,), ...). `trl_loss()` computes TRL's loss of it, scaled for gradient accumulation; it writes
        TRL's metrics, so it is called once.
        """
        ...

    def adjustment(self, trainer: Any, tell: Callable[[str], None]) -> Adjustment | None:
        """What changes the gradients of whole optimizer steps; None: they stay as they are, and no pass is kept.

        `trainer` is TRL's, before its training. `tell` takes sentences to the user. Raises InputError for a training in
        which they can't be changed.
        """
        ...


class Adjustment(Protocol):
    """Changes the gradients of optimizer steps."""

    @property
    def fraction(self) -> float:
        """The share of a step's rows whose passes are made again, above 0 and at most 1."""
        ...

    def __call__(self, model: Any, passes: Passes, step: int) -> Mapping[str, float]:
        """Change the gradients of optimizer step number `step` (from 0) and return what was seen, by the names of
        metrics. Called after the last backward pass of the step, before gradients are clipped, on every rank, when they
        are reduced over ranks. Where it fails, weights and gradients are as they were."""
        ...


@dataclass(frozen=True)
class Part:
    """Some of an optimizer step's rows: their share of those that have an effect, and the gradients that they gave to
    parameters, reduced over ranks."""

    share: float
    gradients: Mapping[Any, Tensor]


class Passes(Protocol):
    """The forward and backward passes that an optimizer step was made of. They can be made again, at other weights."""

    @property
    def gradient_scale(self) -> float:
        """What gradients are multiplied with, so that half precision can hold them (1.0: not at all)."""
        ...

    @property
    def is_full_precision(self) -> bool:
        """Whether they compute in float32 throughout."""
        ...

    @property
    def part(self) -> Part | None:
        """The rows whose passes are made again; None: all."""
        ...

    def again(self, *, one: bool = False, full_precision: bool = False) -> Mapping[str, float]:
        """Make them again, with the same rows, old log-probabilities and random numbers, at the weights as they are
        now. Collective. Their gradients, reduced over ranks, are added to the parameters' `.grad`; what they write
        elsewhere is put back. With `one`, the last of each rank only, whole. With `full_precision`, in float32.

        Returns what TRL's loss said of them, the mean of the passes by TRL's names of metrics, and `kl`: the mean over
        tokens of the divergence of the policy from the one of the first passes.
        """
        ...
