"""GRPO: group-relative advantages (Shao et al., arXiv 2402.03300), as TRL computes it. Nothing is added."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ascent.config.sections import AlgorithmSection

if TYPE_CHECKING:
    from torch import Tensor


class GRPO(AlgorithmSection):
    """TRL's loss, untouched; its settings (`beta`, `epsilon`, `loss_type`, ...) are fields of `trainer`."""

    name: Literal["grpo"] = "grpo"

    @property
    def couples_rows(self) -> bool:
        """See Algorithm."""
        return False

    def loss(self, micro_batch: Mapping[str, Any], trl_loss: Callable[[], Tensor]) -> Tensor:
        """See Algorithm."""
        del micro_batch
        return trl_loss()

    def adjustment(self, trainer: Any, tell: Callable[[str], None]) -> None:
        """See Algorithm: gradients stay as they are."""
        del trainer, tell
