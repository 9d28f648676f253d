"""The seam of the algorithms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

    def adjust_gradients(self, model: Any) -> None:
        """Change the gradients of a whole optimizer step. Called after the last backward pass of the step, before they
        are clipped, on every rank, when gradients are reduced over ranks."""
        ...
