"""Log-probabilities of TRL's padded batches: each distinct sequence computed once, each prompt as seldom as it pays.

It takes the place of the forward pass in `GRPOTrainer._get_per_token_logps_and_entropies` and gives back the same
padded tensors: for the policy and the reference model, with gradients or without.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ascent.errors import InputError
from ascent.memory.cost import CostModel, cost_model
from ascent.memory.widths import bucket, exact, few_rows
from ascent.models.backbone import transformers_model
from ascent.training.batches.passes.by_layout import Target, logps_by_layout
from ascent.training.batches.passes.choosing import SETTINGS, Choice, SharedPrompt, check_wanted, choose
from ascent.training.batches.passes.equal_rows import Distinct, all_rows, distinct_rows, prompt_groups
from ascent.training.batches.passes.layout import Limits
from ascent.training.batches.passes.self_check import SelfCheck
from ascent.training.batches.passes.sequences import HostBatch, Sequences, read_sequences, to_host
from ascent.training.batches.passes.support import Support, flat_reason, sharded, support_of
from ascent.training.batches.passes.trl_call import Call, Results, TRLPass

_REMEMBERED = 4096  # calls


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
    time. `bucketed`: widths are rounded up to few buckets (default: on accelerators), and `few_row_counts`: numbers of
    rows (default: on NPU, where kernels are built for each shape).

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
        few_row_counts: bool | None = None,
    ) -> None:
        if shared_prompt not in SETTINGS:
            raise InputError(f"shared_prompt={shared_prompt!r}: expected one of {', '.join(SETTINGS)}")
        self._trl_pass, self._setting, self._equal_rows = trl_pass, shared_prompt, equal_rows
        self._unwrap, self._autocast, self._tell = unwrap, autocast, tell
        self._bucketed, self._few_row_counts = bucketed, few_row_counts
        self._check = SelfCheck(trl_pass)
        self._told: set[str] = set()
        self._works: deque[Work] = deque(maxlen=_REMEMBERED)

    def take_works(self) -> list[Work]:
        """What was computed since the last time; of the last 4096 calls at most, where nobody takes them."""
        works = list(self._works)
        self._works.clear()
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
        Collective where the model's weights are sharded: each call runs every layer as often as TRL's pass would.
        Raises InputError where `shared_prompt` names a way that would not be exact for this model.
        """
        call = Call(model, input_ids_BT, attention_mask_BT, logits_to_keep, batch_size, compute_entropy)
        bare, one_pass = self._unwrap(model), sharded(model)
        if reason := flat_reason(model):
            return self._left_to_trl(call, reason)
        support = support_of(bare)
        check_wanted(self._setting, support)
        if reason := support.equal_rows or (support.own_rows if one_pass else None):
            return self._left_to_trl(call, reason)
        if one_pass and batch_size is not None and batch_size < len(input_ids_BT):
            return self._in_slices(call)
        target = self._target(call, transformers_model(model))
        limits = self._limits(call, support, target, one_pass=one_pass)
        if support.own_rows is None:
            support = self._check.narrowed(support, target, self._cost(target), limits)
            check_wanted(self._setting, support)
        sequences = read_sequences(host or to_host(input_ids_BT, attention_mask_BT), logits_to_keep)
        if sequences is None:
            return self._left_to_trl(call, "a row has a hole in its mask, or its padding on the other side")
        distinct = distinct_rows(sequences) if self._equal_rows else all_rows(sequences)
        if support.own_rows is not None:
            return self._distinct_by_trl(call, distinct, support.own_rows)
        groups = prompt_groups(sequences, distinct)
        choice = choose(self._setting, groups, self._cost(target), limits, support)
        self._record(choice, sequences, distinct)
        return logps_by_layout(target, choice.layout, sequences, distinct, compute_entropy=compute_entropy)

    # ---- by TRL's pass ------------------------------------------------------------------------------------------

    def _left_to_trl(self, call: Call, reason: str) -> Results:
        self._tell_once(f"shared prompts and equal rows are computed again each time: {reason}")
        rows, tokens = len(call.input_ids_BT), call.input_ids_BT.numel()
        self._works.append(Work(rows, rows, tokens, tokens, "trl"))
        return call.by(self._trl_pass)

    def _distinct_by_trl(self, call: Call, distinct: Distinct, reason: str) -> Results:
        """TRL's pass over rows that differ. Widths stay TRL's."""
        self._tell_once(f"shared prompts are computed again for each completion: {reason}")
        rows, different, tokens = len(distinct.kind_B), len(distinct.rows_U), call.input_ids_BT.numel()
        self._works.append(Work(rows, different, tokens, tokens // rows * different, "trl"))
        if different == rows:
            return call.by(self._trl_pass)
        rows_U, kind_B = (torch.from_numpy(part).to(call.device) for part in (distinct.rows_U, distinct.kind_B))
        logps_UC, entropies_UC = call.of_rows(rows_U).by(self._trl_pass)
        entropies_BC = None if entropies_UC is None else entropies_UC.index_select(0, kind_B)
        return logps_UC.index_select(0, kind_B), entropies_BC

    def _in_slices(self, call: Call) -> Results:
        """As many passes as TRL takes, so that all ranks take equally many."""
        found = [
            self.logps(one.model, one.input_ids_BT, one.attention_mask_BT, one.logits_to_keep, one.compute_entropy)
            for one in call.slices()
        ]
        entropies = [part for _, part in found if part is not None]
        return torch.cat([part for part, _ in found]), torch.cat(entropies) if entropies else None

    # ---- by a layout of our own ---------------------------------------------------------------------------------

    def _target(self, call: Call, base: Any) -> Target:
        bucketed = call.device.type != "cpu" if self._bucketed is None else self._bucketed
        return Target(call.model, base, call.device, self._autocast, bucket if bucketed else exact)

    def _limits(self, call: Call, support: Support, target: Target, *, one_pass: bool) -> Limits:
        most = None if call.batch_size is None else call.batch_size * call.input_ids_BT.shape[1]
        few = target.device.type == "npu" if self._few_row_counts is None else self._few_row_counts
        # a single pass can't be cut where rows would be added: it would take memory that nobody has planned for
        return Limits(target.widths, one_pass, support.window, most, few_rows if few and not one_pass else exact)

    def _cost(self, target: Target) -> CostModel:
        return cost_model(target.base.config)

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
