"""Each way is compared with TRL's pass on a few short sequences before it is first used with a model.

What `support` reads off a model can't see everything: attention kernels, patches and code of the model's own take
masks and positions as they will. A way that disagrees is not used, and what is lost is told.
"""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

import torch

from ascent.memory.cost import CostModel
from ascent.training.batches.passes.by_layout import Target, logps_by_layout
from ascent.training.batches.passes.equal_rows import distinct_rows, prompt_groups
from ascent.training.batches.passes.layout import Limits, Way, cached, plain, shared_rows
from ascent.training.batches.passes.sequences import read_sequences, to_host
from ascent.training.batches.passes.support import Support
from ascent.training.batches.passes.trl_call import Call, TRLPass

_PROMPT, _COMPLETION = 40, 6  # tokens
# Differences of log-probabilities that rounding makes: the largest in float32; the mean in 16 bits, where single tokens
# may differ by much (an expert that is just not chosen).
_FULL, _HALF = 1e-3, 0.05
_LAYOUTS = {"plain": plain, "rows": shared_rows, "cache": cached}


class SelfCheck:
    """What was found of each model so far. All ranks that share a model come here with the same ways, and so run it
    equally often."""

    def __init__(self, trl_pass: TRLPass) -> None:
        self._trl_pass = trl_pass
        self._found: WeakKeyDictionary[torch.nn.Module, dict[Way, str | None]] = WeakKeyDictionary()

    def narrowed(self, support: Support, target: Target, cost: CostModel, limits: Limits) -> Support:
        """`support` without the ways whose log-probabilities turn out otherwise than TRL's. Without rows of their own
        there is no sharing, and without sharing no caching."""
        reasons: dict[Way, str | None] = {"plain": support.own_rows, "rows": support.sharing, "cache": support.caching}
        found = self._found.setdefault(target.base, {})
        new = [way for way, reason in reasons.items() if reason is None and way not in found]
        if new:
            found |= self._compared(new, target, cost, limits)
        own_rows = support.own_rows or found.get("plain")
        sharing = support.sharing or own_rows or found.get("rows")
        return replace(
            support,
            own_rows=own_rows,
            sharing=sharing,
            caching=support.caching or sharing or found.get("cache"),
        )

    @torch.no_grad()
    def _compared(self, ways: list[Way], target: Target, cost: CostModel, limits: Limits) -> dict[Way, str | None]:
        call = _sample(target)
        sequences = read_sequences(to_host(call.input_ids_BT, call.attention_mask_BT), call.logits_to_keep)
        assert sequences is not None
        distinct = distinct_rows(sequences)
        groups = prompt_groups(sequences, distinct)
        expected_BC, _ = call.by(self._trl_pass)
        with target.autocast():
            half = target.base.dtype != torch.float32 or torch.is_autocast_enabled(target.device.type)
        found: dict[Way, str | None] = {}
        for way in ways:
            layout = _LAYOUTS[way](groups, cost, limits)
            logps_BC, _ = logps_by_layout(target, layout, sequences, distinct, compute_entropy=False)
            found[way] = _disagreement(way, logps_BC, expected_BC, half=half)
        return found


def _sample(target: Target) -> Call:
    """Three rows as TRL pads them: two that share a prompt, and one with a shorter prompt."""
    vocabulary = target.base.get_input_embeddings().weight.shape[0]
    tokens_T = torch.arange(1, _PROMPT + _COMPLETION + 1, device=target.device) * 7919 % vocabulary
    ids_BT = tokens_T.repeat(3, 1)
    mask_BT = torch.ones_like(ids_BT)
    ids_BT[1, _PROMPT:] = ids_BT[0, :_COMPLETION]
    mask_BT[1, -2:] = 0
    mask_BT[2, : _PROMPT // 2] = 0
    return Call(target.model, ids_BT * mask_BT, mask_BT, _COMPLETION, None, compute_entropy=False)


def _disagreement(way: Way, found_BC: torch.Tensor, expected_BC: torch.Tensor, *, half: bool) -> str | None:
    difference_BC = (found_BC - expected_BC).abs()
    difference = float(difference_BC.mean() if half else difference_BC.max())
    if difference <= (_HALF if half else _FULL):  # False for NaN
        return None
    size = f"by {difference:.2g} {'on average' if half else 'at most'}"
    return f"log-probabilities of a few sequences, computed by way of {way}, differ from those of TRL's pass {size}"
