"""What TRL's pass is called with and gives back: the seam at which the packed pass stands in for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch

Results = tuple[torch.Tensor, torch.Tensor | None]  # log-probabilities and entropies, (B, C), float32


class TRLPass(Protocol):
    """TRL's own pass over padded tensors."""

    def __call__(
        self,
        model: torch.nn.Module,
        input_ids_BT: torch.Tensor,
        attention_mask_BT: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None,
        compute_entropy: bool,
        /,
    ) -> Results: ...


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of a pass; `model` with whatever wraps it."""

    model: torch.nn.Module
    input_ids_BT: torch.Tensor
    attention_mask_BT: torch.Tensor
    logits_to_keep: int
    batch_size: int | None
    compute_entropy: bool

    @property
    def device(self) -> torch.device:
        """Where the tensors are, and the results will be."""
        return self.input_ids_BT.device

    def by(self, trl_pass: TRLPass) -> Results:
        """What TRL's pass gives."""
        ids_BT, mask_BT = self.input_ids_BT, self.attention_mask_BT
        return trl_pass(self.model, ids_BT, mask_BT, self.logits_to_keep, self.batch_size, self.compute_entropy)

    def of_rows(self, rows_U: torch.Tensor) -> Call:
        """The same with some of the rows."""
        ids_UT, mask_UT = self.input_ids_BT.index_select(0, rows_U), self.attention_mask_BT.index_select(0, rows_U)
        return replace(self, input_ids_BT=ids_UT, attention_mask_BT=mask_UT)

    def slices(self) -> list[Call]:
        """`batch_size` rows each, the last perhaps fewer."""
        size = self.batch_size or len(self.input_ids_BT)
        return [
            replace(self, input_ids_BT=ids_BT, attention_mask_BT=mask_BT, batch_size=None)
            for ids_BT, mask_BT in zip(self.input_ids_BT.split(size), self.attention_mask_BT.split(size), strict=True)
        ]
