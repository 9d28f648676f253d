"""One optimizer step's micro-batches, trained on in sub-batches of our own making.

TRL calls `training_step` once a micro-batch. All but the last hand their rows over (`hand_over`); the last plans the
sub-batches and runs them (`train`). An example, four micro-batches of TRL's, budget 2,000 tokens:

    hand_over(16 rows), three times             nothing is computed; TRL's counters go on
    train(...)                                  64 rows, of which 40 have an advantage, of 5 prompts
        plan: 3 sub-batches                     each of whole groups, so that their prompts are computed once
        pass 1, 2                               gradients stay on this rank
        pass 3                                  gradients are reduced over ranks

All ranks make the same number of passes: one with fewer sub-batches adds a row without effect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ascent.training.batches import plan
from ascent.training.batches.folded_metrics import Size, folded
from ascent.training.batches.one_pass import apart, ragged, synchronised
from ascent.training.batches.parting import Parting
from ascent.training.batches.rows import (
    Length,
    Rows,
    SubBatch,
    count,
    cut,
    filling,
    gathered,
    join,
    lengths,
    take,
    tokens_in_loss,
    without_effect,
)
from ascent.training.step.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Savings:
    """What a step may leave out. `budget` is in tokens of a sub-batch. None: TRL's micro-batches stay as they are; 0:
    as many as the longest rows of one of them have, padding included, for which the user knows that memory is there."""

    budget: int | None
    skip: bool  # rows without effect
    cost: plan.Cost | None  # by which rows are dealt out to ranks; None: they stay where they are
    movable: bool  # a row is computed alike wherever it stands among the columns


@dataclass(frozen=True, slots=True)
class Done:
    """What an optimizer step showed, over all ranks."""

    loss: Tensor  # this rank's, a scalar
    metrics: dict[str, float]


class Window:
    """The rows of an optimizer step that is going on."""

    def __init__(
        self,
        accelerator: Any,
        ranks: Ranks,
        parting: Parting,
        savings: Savings,
        *,
        per_sequence: bool,
        tell: Callable[[str], None],
    ) -> None:
        """`per_sequence`: importance ratios are one a sequence. `tell` takes a sentence to the user."""
        self._accelerator, self._ranks, self._parting, self._savings = accelerator, ranks, parting, savings
        self._per_sequence, self._tell, self._told = per_sequence, tell, False
        self._slices: list[tuple[int, Rows]] = []

    def hand_over(self, generation: int, rows: Rows) -> None:
        """A micro-batch of the step, with the number of the generation that it is a slice of."""
        self._slices.append((generation, rows))

    def forget(self) -> None:
        """Nothing has been handed over."""
        self._slices = []

    def train(
        self,
        model: Any,
        shares: bool,
        run: Callable[[SubBatch], Tensor],
        metrics: dict[str, list[float]],
        *,
        fraction: float = 1.0,
        part_done: Callable[[float], None] = lambda share: None,
    ) -> Done:
        """Forward and backward passes of all that was handed over. Collective.

        `shares`: a prompt that stands in several rows of a pass is computed once. `run` makes a sub-batch's weighted
        loss and its backward pass; `metrics` are TRL's, which a pass writes into. With a `fraction` below 1, that share
        of the rows has its passes first; their gradients are reduced over ranks, and `part_done` is told how many they
        are among those that are computed.
        """
        slices, self._slices = self._slices, []
        part, rest = self._sub_batches(slices, shares, fraction)
        batches = [*part, *rest]
        loss = torch.zeros((), device=self._accelerator.device)
        written: list[dict[str, list[float]]] = []
        for number, batch in enumerate(batches):
            last = number in (len(part) - 1, len(batches) - 1)
            with (
                synchronised(self._accelerator, model, last),
                ragged(self._accelerator),
                apart(metrics, written),
            ):
                loss = loss + run(batch)
            if rest and number == len(part) - 1:
                part_done(self._share(part, rest))
        sizes = self._sizes(batches)
        rows = sum(count(each) for _, each in slices)
        found = folded(written, sizes, per_sequence=self._per_sequence)
        found["batch/computed_rows"] = sum(size.rows for size in sizes) / (rows * self._ranks.count)
        found["batch/passes"] = float(len(batches))
        return Done(loss, found)

    def _sub_batches(
        self, slices: Sequence[tuple[int, Rows]], shares: bool, fraction: float
    ) -> tuple[list[SubBatch], list[SubBatch]]:
        """What this rank computes, a share of the rows and the others: of the first at least one, and of each as many
        as every other rank."""
        rows_of_step, steps = sum(count(rows) for _, rows in slices), len(slices)
        part: list[SubBatch] = []
        rest: list[SubBatch] = []
        for whole in self._units(slices):
            for rows, in_part in self._parts(whole, rows_of_step // steps, shares, fraction):
                weight = self._parting.weight(rows, whole, rows_of_step, steps)
                (part if in_part else rest).append(SubBatch(rows, weight))
        part = self._as_many_as_others(part, slices[0][1])
        if not part:
            return [self._row_to_look_at(slices[0][1])], []
        return part, [] if fraction == 1.0 else self._as_many_as_others(rest, slices[0][1])

    def _as_many_as_others(self, batches: list[SubBatch], rows: Rows) -> list[SubBatch]:
        passes = self._ranks.max_over_ranks(len(batches))
        return [*(filling(rows) for _ in range(passes - len(batches))), *batches]

    def _share(self, part: Sequence[SubBatch], rest: Sequence[SubBatch]) -> float:
        """The first ones' rows among all, over all ranks."""
        rows = [sum(count(each) * (not each.filling) for each in batches) for batches in (part, [*part, *rest])]
        some, all_rows = self._accelerator.reduce(
            torch.tensor(rows, dtype=torch.float32, device=self._accelerator.device), reduction="sum"
        ).tolist()
        return float(some / all_rows)

    def _row_to_look_at(self, rows: Rows) -> SubBatch:
        """A row that moves nothing, for a step that has no other on any rank: so that there are gradients, of zeros,
        and the entropy and the difference from the sampler are known of something."""
        with_tokens = rows["completion_mask"].ne(0).any(dim=1)
        place = int(with_tokens.int().argmax())
        row = take(rows, [place])
        known = lengths(row) if self._savings.movable else None
        if known is not None:
            row = cut(row, known[0].prompt_tokens, known[0].completion_tokens)
        return SubBatch(row, 0.0)

    def _units(self, slices: Sequence[tuple[int, Rows]]) -> list[Rows]:
        """What may be parted: the rows of one generation together, or each of TRL's micro-batches."""
        if not self._regroups:
            return [rows for _, rows in slices]
        by_generation: dict[int, list[Rows]] = defaultdict(list)
        for generation, rows in slices:
            by_generation[generation].append(rows)
        return [join(rows) for rows in by_generation.values()]

    @property
    def _regroups(self) -> bool:
        return self._parting.weighing != "tokens" and self._savings.budget is not None

    def _parts(self, whole: Rows, micro_batch: int, shares: bool, fraction: float) -> Iterator[tuple[Rows, bool]]:
        """This rank's parts of a unit, whose rows may have been another rank's, and whether they are of the `fraction`
        of its rows whose passes come first."""
        savings = self._savings
        cost = savings.cost if self._regroups and self._ranks.count > 1 else None
        rows = gathered(whole, self._accelerator) if cost is not None else whole
        places = list(range(count(rows)))
        if savings.skip and self._parting.skips:
            still = set(without_effect(rows))
            places = [place for place in places if place not in still]
        known = lengths(rows) if savings.budget is not None else None
        if known is None:
            places = places[self._ranks.rank :: self._ranks.count] if cost is not None else places
            for part, first in zip(plan.in_two(None, places, fraction, shared=shares), (True, False), strict=True):
                if part:
                    yield rows if len(part) == count(rows) else take(rows, part), first
            return
        if cost is not None:
            places = plan.over_ranks(known, places, self._ranks.count, cost, shared=shares)[self._ranks.rank]
        budget = savings.budget or micro_batch * max(length.tokens for length in known)
        self._tell_of_long(known, places)
        for some, first in zip(plan.in_two(known, places, fraction, shared=shares), (True, False), strict=True):
            for part in plan.sub_batches(known, some, budget, shared=shares):
                prompt_columns = rows["prompt_ids"].shape[1]
                if savings.movable:
                    prompt_columns = max(known[place].prompt_tokens for place in part)
                columns = max(known[place].completion_tokens for place in part)
                yield cut(take(rows, part), prompt_columns, columns), first

    def _tell_of_long(self, known: Sequence[Length], places: Sequence[int]) -> None:
        longest = max((known[place].tokens for place in places), default=0)
        if self._savings.budget and longest > self._savings.budget and not self._told:
            self._told = True
            self._tell(
                f"note: max_tokens_per_batch={self._savings.budget}, but a sequence has {longest} tokens: it has a "
                "pass of its own. Where memory doesn't hold it, lower max_completion_length"
            )

    def _sizes(self, batches: Sequence[SubBatch]) -> list[Size]:
        local = [
            [float(tokens_in_loss(each)), float(count(each) * (not each.filling)), float(each.filling)]
            for each in batches
        ]
        sizes_N3 = torch.tensor(local, device=self._accelerator.device)
        return [Size(*each) for each in self._accelerator.reduce(sizes_N3, reduction="sum").tolist()]
