"""How a step's log-probabilities are computed: without padding, each prompt and each distinct row once, or as TRL does.

All ways give TRL's values. Which one is taken is decided by the settings `packing`, `shared_prompt` and
`reuse_equal_rows`, and by what is exact for the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ascent.training.arguments import own_setting
from ascent.training.batches.passes.packed_forward import PackedForward
from ascent.training.batches.passes.padding_free import PaddingFreeForward
from ascent.training.batches.passes.padding_free_support import Packing
from ascent.training.batches.passes.support import flat_reason, support_of
from ascent.training.batches.passes.trl_call import Results


class StepForward:
    """Takes the place of TRL's pass over padded tensors, for policy and reference, with gradients or without."""

    def __init__(self, trainer: Any, trl_pass: Callable[..., Any], tell: Callable[[str], None]) -> None:
        """`trl_pass` is TRL's `_get_per_token_logps_and_entropies`; `tell` takes a sentence about what was decided.

        Raises InputError for a setting that doesn't exist.
        """
        args, accelerator = trainer.args, trainer.accelerator
        self._packing = Packing(own_setting(args, "packing"), PaddingFreeForward(accelerator.autocast), tell)
        self._unwrap, self._shared = accelerator.unwrap_model, own_setting(args, "shared_prompt")
        equal_rows = bool(own_setting(args, "reuse_equal_rows"))
        self._saves = equal_rows or self._shared != "off"

        def by_trl(
            model: Any, ids: Any, mask: Any, columns: int, batch_size: int | None, entropies: bool, /
        ) -> Results:
            logps_BC, entropies_BC, _ = trl_pass(model, ids, mask, columns, batch_size, entropies)
            return logps_BC, entropies_BC

        self._by_trl = by_trl
        self._packed = PackedForward(
            by_trl,
            shared_prompt=self._shared,
            equal_rows=equal_rows,
            unwrap=accelerator.unwrap_model,
            autocast=accelerator.autocast,
            tell=lambda note: tell(f"note: {note}"),
        )

    def logps(
        self,
        model: Any,
        input_ids_BT: torch.Tensor,
        attention_mask_BT: torch.Tensor,
        columns: int,
        batch_size: int | None,
        compute_entropy: bool,
    ) -> Results:
        """Log-probabilities (B, C) of the last C = `columns` tokens, and entropies (B, C) if asked for. `batch_size`
        bounds memory as in TRL. Collective where the model's weights are sharded."""
        if (free := self._packing.forward_for(model)) is not None and batch_size is None:
            return free.logps(model, input_ids_BT, attention_mask_BT, columns, compute_entropy)
        if not self._saves:
            return self._by_trl(model, input_ids_BT, attention_mask_BT, columns, batch_size, compute_entropy)
        return self._packed.logps(
            model, input_ids_BT, attention_mask_BT, columns, compute_entropy, batch_size=batch_size
        )

    def shares(self, model: Any) -> bool:
        """Whether rows of one prompt should stand together: it is computed once for them."""
        if self._shared == "off" or flat_reason(model):
            return False
        support = support_of(self._unwrap(model))
        return support.sharing is None or support.caching is None
