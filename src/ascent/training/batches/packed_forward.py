"""Log-probabilities of TRL's padded batches: each distinct sequence computed once, each prompt as seldom as it pays.

It takes the place of the forward pass in `GRPOTrainer._get_per_token_logps_and_entropies` and gives back the same
padded tensors: for the policy and the reference model, with gradients or without.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from ascent.errors import InputError
from ascent.training.batches.buckets import bucket, exact
from ascent.training.batches.choosing import SETTINGS, Choice, SharedPrompt, choose
from ascent.training.batches.cost import cost_model
from ascent.training.batches.equal_rows import Distinct, all_rows, distinct_rows, prompt_groups
from ascent.training.batches.head_at_scores import backbone_replaced
from ascent.training.batches.layout import CachedPass, Layout, Limits
from ascent.training.batches.packing import PackedCache, PackedPass, Packer, Scored, joined, result_index
from ascent.training.batches.running import Backbone
from ascent.training.batches.sequences import HostBatch, Sequences, read_sequences, to_host
from ascent.training.batches.support import Support, base_of, sharded, support_of

_IGNORED = -100  # the label of a position that isn't scored
Results = tuple[torch.Tensor, torch.Tensor | None]  # log-probabilities and entropies, (B, C)


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
class Work:
    """What one call computed: sequences asked for, those that differ, tokens as TRL pads them and as they were
    computed (with their own padding), and the way ("trl" where TRL's pass was taken)."""

    sequences: int
    distinct: int
    padded_tokens: int
    computed_tokens: int
    way: str


class PackedForward:
    """Computes what TRL's pass computes, in less work.

    `unwrap` takes DDP's and FSDP's wrappers off a model and leaves PEFT's on; `autocast` is what TRL runs the model in
    (`accelerator.autocast`); `tell` is given each note once. Without `equal_rows` equal rows are computed again each
    time. `bucketed`: widths are rounded up to few buckets (default: on accelerators).

    Raises InputError for a setting that doesn't exist.
    """

    def __init__(
        self,
        trl_pass: TRLPass,
        *,
        shared_prompt: SharedPrompt = "auto",
        equal_rows: bool = True,
        unwrap: Callable[[Any], Any] = lambda model: model,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        tell: Callable[[str], None] = lambda note: None,
        bucketed: bool | None = None,
    ) -> None:
        if shared_prompt not in SETTINGS:
            raise InputError(f"shared_prompt={shared_prompt!r}: expected one of {', '.join(SETTINGS)}")
        self._trl_pass, self._setting, self._equal_rows = trl_pass, shared_prompt, equal_rows
        self._unwrap, self._autocast, self._tell = unwrap, autocast, tell
        self._bucketed = bucketed
        self._told: set[str] = set()
        self._works: list[Work] = []

    def take_works(self) -> list[Work]:
        """What was computed since the last time."""
        works, self._works = self._works, []
        return works

    def logps(
        self,
        model: torch.nn.Module,
        input_ids_BT: torch.Tensor,
        attention_mask_BT: torch.Tensor,
        logits_to_keep: int,
        compute_entropy: bool = False,
        *,
        batch_size: int | None = None,
        host: HostBatch | None = None,
    ) -> Results:
        """Log-probabilities (B, C) of the last C = `logits_to_keep` tokens of each row, 0 where the mask is, and with
        `compute_entropy` the entropies of the distributions that they come from, both float32.

        `batch_size` bounds memory as in TRL: a pass of the model takes at most as many tokens as that many padded rows
        have. `host` are host copies of both tensors, which spare a transfer.
        Collective where the model's weights are sharded.
        """
        bare = self._unwrap(model)
        support = support_of(bare)
        is_sharded = sharded(model)
        trl = _Call(model, input_ids_BT, attention_mask_BT, logits_to_keep, batch_size, compute_entropy)
        if reason := support.equal_rows or (support.own_rows if is_sharded else None):
            return self._left_to_trl(trl, reason)
        if is_sharded and batch_size is not None and batch_size < len(input_ids_BT):
            return self._in_slices(trl)
        sequences = read_sequences(host or to_host(input_ids_BT, attention_mask_BT), logits_to_keep)
        if sequences is None:
            return self._left_to_trl(trl, "a row has a hole in its mask, or its padding on the other side")
        distinct = distinct_rows(sequences) if self._equal_rows else all_rows(sequences)
        if support.own_rows is not None:
            return self._distinct_by_trl(trl, distinct, support.own_rows)
        return self._packed(trl, bare, support, sequences, distinct, one_pass=is_sharded)

    # ---- by TRL's pass ------------------------------------------------------------------------------------------

    def _left_to_trl(self, call: _Call, reason: str) -> Results:
        self._tell_once(f"shared prompts and equal rows are computed again each time: {reason}")
        rows, tokens = len(call.input_ids_BT), call.input_ids_BT.numel()
        self._works.append(Work(rows, rows, tokens, tokens, "trl"))
        return call.by(self._trl_pass)

    def _distinct_by_trl(self, call: _Call, distinct: Distinct, reason: str) -> Results:
        """TRL's pass over rows that differ. Widths stay TRL's."""
        self._tell_once(f"shared prompts are computed again for each completion: {reason}")
        device, rows, tokens = call.input_ids_BT.device, len(distinct.kind_B), call.input_ids_BT.numel()
        different = len(distinct.rows_U)
        self._works.append(Work(rows, different, tokens, tokens // rows * different, "trl"))
        if different == rows:
            return call.by(self._trl_pass)
        rows_U, kind_B = (torch.from_numpy(part).to(device) for part in (distinct.rows_U, distinct.kind_B))
        logps_UC, entropies_UC = call.of_rows(rows_U).by(self._trl_pass)
        entropies_BC = None if entropies_UC is None else entropies_UC.index_select(0, kind_B)
        return logps_UC.index_select(0, kind_B), entropies_BC

    # ---- by a layout of our own ---------------------------------------------------------------------------------

    def _in_slices(self, call: _Call) -> Results:
        """As many passes as TRL takes, so that all ranks take equally many."""
        assert call.batch_size is not None
        found = []
        for begin in range(0, len(call.input_ids_BT), call.batch_size):
            part = slice(begin, begin + call.batch_size)
            ids, mask = call.input_ids_BT[part], call.attention_mask_BT[part]
            found.append(self.logps(call.model, ids, mask, call.logits_to_keep, call.compute_entropy))
        entropies = [part for _, part in found if part is not None]
        return torch.cat([part for part, _ in found]), torch.cat(entropies) if entropies else None

    def _packed(
        self,
        call: _Call,
        bare: torch.nn.Module,
        support: Support,
        sequences: Sequences,
        distinct: Distinct,
        *,
        one_pass: bool,
    ) -> Results:
        base, device = base_of(bare), call.input_ids_BT.device
        widths = bucket if (device.type != "cpu" if self._bucketed is None else self._bucketed) else exact
        most = None if call.batch_size is None else call.batch_size * call.input_ids_BT.shape[1]
        limits = Limits(widths, one_pass, support.window, most)
        groups = prompt_groups(sequences, distinct)
        choice = choose(self._setting, groups, cost_model(base.config), limits, support)
        self._record(choice, sequences, distinct)
        packed = _pack(choice.layout, Packer(sequences, distinct, device))
        scored = joined(_scored_of(packed))
        count = widths(len(scored.targets_M)) if len(scored.targets_M) else 0
        targets_1M = np.full((1, count), _IGNORED)
        targets_1M[0, : len(scored.targets_M)] = scored.targets_M
        index_BC = torch.from_numpy(result_index(scored, distinct, sequences.width)).to(device)
        output = self._run(call.model, base, packed, torch.from_numpy(targets_1M).to(device))
        entropies_BC = _padded(output.entropy[0], index_BC, len(scored.targets_M)) if call.compute_entropy else None
        return _padded(output.log_probs[0], index_BC, len(scored.targets_M)), entropies_BC

    def _run(
        self, model: torch.nn.Module, base: Any, packed: list[PackedPass | PackedCache], targets_1M: torch.Tensor
    ) -> Any:
        dtype = base.get_input_embeddings().weight.dtype

        def hidden_states(forward: Callable[..., Any]) -> torch.Tensor:
            found_MH = Backbone(forward, base.config._attn_implementation, dtype).hidden_states(packed)
            missing = targets_1M.shape[1] - len(found_MH)
            return torch.nn.functional.pad(found_MH, (0, 0, 0, missing))[None]

        with self._autocast(), backbone_replaced(base.base_model, hidden_states):
            return model(input_ids=targets_1M, shift_labels=targets_1M, fused_lm_head=True)

    # ---- what is told -------------------------------------------------------------------------------------------

    def _record(self, choice: Choice, sequences: Sequences, distinct: Distinct) -> None:
        layout, rows, different = choice.layout, len(distinct.kind_B), len(distinct.rows_U)
        self._works.append(Work(rows, different, sequences.padded_tokens, layout.tokens, layout.way))
        self._tell_once(
            f"shared prompts: {layout.way} ({choice.why}); first seen with {layout.tokens} tokens computed where TRL's "
            f"padded rows have {sequences.padded_tokens}",
            key=f"way {layout.way}",
        )

    def _tell_once(self, note: str, key: str | None = None) -> None:
        if (key or note) not in self._told:
            self._told.add(key or note)
            self._tell(note)


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of TRL's pass."""

    model: torch.nn.Module
    input_ids_BT: torch.Tensor
    attention_mask_BT: torch.Tensor
    logits_to_keep: int
    batch_size: int | None
    compute_entropy: bool

    def by(self, trl_pass: TRLPass) -> Results:
        return trl_pass(
            self.model,
            self.input_ids_BT,
            self.attention_mask_BT,
            self.logits_to_keep,
            self.batch_size,
            self.compute_entropy,
        )

    def of_rows(self, rows_U: torch.Tensor) -> _Call:
        ids_UT, mask_UT = self.input_ids_BT.index_select(0, rows_U), self.attention_mask_BT.index_select(0, rows_U)
        return _Call(self.model, ids_UT, mask_UT, self.logits_to_keep, self.batch_size, self.compute_entropy)


def _pack(layout: Layout, packer: Packer) -> list[PackedPass | PackedCache]:
    packed: list[PackedPass | PackedCache] = [
        packer.cached(one) if isinstance(one, CachedPass) else packer.rows(one) for one in layout.passes
    ]
    return packed or [packer.nothing()]


def _scored_of(packed: list[PackedPass | PackedCache]) -> list[Scored]:
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
