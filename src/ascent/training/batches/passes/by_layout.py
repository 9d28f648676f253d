"""Log-probabilities by a layout: its passes run within one call of the model, the results put where TRL has them.

TRL's fused head (`trl.trainer.utils.add_fused_lm_head`) makes log-probabilities of what the backbone gives. That is the
scored positions only, (1, M, H), so that the head works for nothing else, on any device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.modeling_outputs import BaseModelOutputWithPast

from ascent.models.backbone import Forward, backbone_replaced
from ascent.training.batches.passes.equal_rows import Distinct
from ascent.training.batches.passes.layout import CachedPass, Layout, Widths
from ascent.training.batches.passes.packing import PackedCache, PackedPass, Packer, Scored, joined, result_index
from ascent.training.batches.passes.running import Backbone
from ascent.training.batches.passes.sequences import Sequences
from ascent.training.batches.passes.trl_call import Results

_IGNORED = -100  # the label of a position that isn't scored


@dataclass(frozen=True, slots=True)
class Target:
    """The model that computes: with its wrappers, and the transformers model `base` within them; where, in what
    context, and how widths are rounded up there."""

    model: torch.nn.Module
    base: Any
    device: torch.device
    autocast: Callable[[], AbstractContextManager[Any]]
    widths: Widths


def logps_by_layout(
    target: Target, layout: Layout, sequences: Sequences, distinct: Distinct, *, compute_entropy: bool
) -> Results:
    """Log-probabilities and entropies (B, C) of the sequences' completions, 0 where these have ended."""
    packed = _packed(layout, Packer(sequences, distinct, target.device))
    scored = joined(_scored_of(packed))
    count = len(scored.targets_M)
    targets_1M = np.full((1, target.widths(count) if count else 0), _IGNORED)
    targets_1M[0, :count] = scored.targets_M
    index_BC = torch.from_numpy(result_index(scored, distinct, sequences.width)).to(target.device)
    output = _run(target, packed, torch.from_numpy(targets_1M).to(target.device))
    entropies_BC = _padded(output.entropy[0], index_BC, count) if compute_entropy else None
    return _padded(output.log_probs[0], index_BC, count), entropies_BC


def _run(target: Target, packed: Sequence[PackedPass | PackedCache], targets_1M: torch.Tensor) -> Any:
    base = target.base
    dtype = base.get_input_embeddings().weight.dtype

    def at_scored_positions(forward: Forward, *_: Any, **__: Any) -> BaseModelOutputWithPast:
        found_MH = Backbone(forward, base.config._attn_implementation, dtype).hidden_states(packed)
        missing = targets_1M.shape[1] - len(found_MH)
        hidden_1MH: Any = torch.nn.functional.pad(found_MH, (0, 0, 0, missing))[None]
        return BaseModelOutputWithPast(last_hidden_state=hidden_1MH)

    with target.autocast(), backbone_replaced(base, at_scored_positions):
        return target.model(input_ids=targets_1M, shift_labels=targets_1M, fused_lm_head=True)


def _packed(layout: Layout, packer: Packer) -> list[PackedPass | PackedCache]:
    packed: list[PackedPass | PackedCache] = [
        packer.cached(one) if isinstance(one, CachedPass) else packer.rows(one) for one in layout.passes
    ]
    return packed or [packer.nothing()]


def _scored_of(packed: Sequence[PackedPass | PackedCache]) -> list[Scored]:
    """In the order in which `Backbone.hidden_states` gives them."""
    scored: list[Scored] = []
    for one in packed:
        if isinstance(one, PackedPass):
            scored.append(one.scored)
        else:
            scored += [one.prompts.scored, *(part.inputs.scored for part in one.continuations)]
    return scored


def _padded(values_M: torch.Tensor, index_BC: torch.Tensor, count: int) -> torch.Tensor:
    """(B, C): each row's values, 0 where `index_BC` is `count`, their number."""
    return torch.cat([values_M[:count], values_M.new_zeros(1)])[index_BC]
