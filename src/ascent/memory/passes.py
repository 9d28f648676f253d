"""The largest passes of an optimizer step: how many tokens they compute, how they are laid out, how many are scored.

All prompts and completions are taken at their longest. How rows are dealt out to passes is `training/batches/plan.py`,
how a pass is laid out `training/batches/passes/layout.py`: here is the same for groups that are all alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ascent.memory.cost import CostModel
from ascent.memory.settings import Batch
from ascent.memory.widths import bucket

_WORTH = 0.95  # another layout must cost less than that share of the simpler one


@dataclass(frozen=True, slots=True)
class Pass:
    """One call of the model: tokens that its layers compute and that are scored, and how many such calls an optimizer
    step makes on one device. `pairs` are the elements of the mask of its own that its attention takes, 0 where it needs
    none; `prompts` the tokens whose keys and values it takes from prompts that were computed once; `width` the tokens
    of a row."""

    tokens: int
    scored: int
    count: int = 1
    pairs: int = 0
    prompts: int = 0
    width: int = 0


@dataclass(frozen=True, slots=True)
class _Layout:
    cost: float
    tokens: int
    width: int
    pairs: int = 0
    prompts: int = 0


def training_pass(batch: Batch, cost: CostModel, *, buckets: bool, checkpointing: bool) -> Pass:
    """The largest pass with gradients. `buckets`: widths are rounded up, as they are on NPUs.

    With a budget the rows of the whole optimizer step are dealt out anew: whole groups to a pass where prompts are
    shared, as many completions of one as the budget holds where a group is too large.
    """
    rows = batch.micro_batch * (1 if batch.budget is None else batch.accumulation)
    budget = batch.budget or batch.micro_batch * batch.length
    calls = batch.accumulation if batch.budget is None else 1
    if not batch.shared_prompt or batch.group == 1:
        taken = rows if batch.budget is None else min(rows, max(1, budget // batch.length))
        return _pass(batch, cost, taken, 1, calls * -(-rows // taken), buckets=buckets, cached=False)
    if batch.budget is None:
        together = min(batch.group, rows)
        groups = max(1, rows // together)
    else:
        groups, together = _whole_groups(batch, budget, rows)
    count = calls * -(-rows // (groups * together))
    return _pass(batch, cost, groups, together, count, buckets=buckets, cached=not checkpointing)


def in_two(batch: Batch, fraction: float) -> tuple[Batch, Batch | None]:
    """That share of the rows, whole groups where prompts are shared, and the others, which never share a pass with them
    (`training/batches/plan.py`). With a budget the rows are those of the optimizer step, else of each micro-batch."""
    rows = batch.micro_batch * (1 if batch.budget is None else batch.accumulation)
    whole = min(batch.group, rows) if batch.shared_prompt else 1
    first = min(rows, math.ceil(math.ceil(fraction * rows) / whole) * whole)
    if first == rows:
        return batch, None
    budget = None if batch.budget is None else batch.budget or batch.micro_batch * batch.length
    passes = batch.accumulation if budget is None else 1
    part, rest = (
        replace(batch, micro_batch=some, accumulation=passes, budget=budget) for some in (first, rows - first)
    )
    return part, rest


def padded_pass(batch: Batch, *, all_scored: bool) -> Pass:
    """TRL's own micro-batches, padded. `all_scored`: its head scores prompts too, where there is no Triton."""
    tokens = batch.micro_batch * batch.length
    scored = tokens if all_scored else batch.micro_batch * batch.completion
    return Pass(tokens, scored, batch.accumulation, width=batch.length)


def scoring_pass(batch: Batch, cost: CostModel, *, buckets: bool) -> Pass:
    """The largest pass without gradients: the head takes all completions of a generation at once, the layers a
    micro-batch's tokens."""
    together = min(batch.group, batch.micro_batch) if batch.shared_prompt else 1
    groups = max(1, batch.micro_batch // together)
    found = _pass(batch, cost, groups, together, 1, buckets=buckets, cached=batch.shared_prompt)
    width = bucket if buckets else int
    return replace(found, scored=width(batch.sampled * batch.completion))


def _pass(
    batch: Batch, cost: CostModel, groups: int, together: int, count: int, *, buckets: bool, cached: bool
) -> Pass:
    width = bucket if buckets else int
    prompt, rest = batch.prompt, batch.completion - 1  # a completion's last token predicts nothing
    plain = width(prompt + rest)
    best = _Layout(cost.causal(groups * together, plain), groups * together * plain, plain)
    if together > 1:
        found = [_shared_rows(cost, groups, together, prompt, rest, buckets=buckets)]
        if cached:
            found.append(_cached(cost, groups, together, width(prompt), width(rest)))
        for layout in found:
            best = layout if layout.cost < _WORTH * best.cost else best
    scored = width(groups * together * batch.completion)
    return Pass(best.tokens, scored, count, best.pairs, best.prompts, best.width)


def _shared_rows(cost: CostModel, groups: int, together: int, prompt: int, rest: int, *, buckets: bool) -> _Layout:
    """A prompt and several of its completions in a row, as many as are worth their attention."""

    def unpadded(rows: int) -> float:
        members = -(-together // rows)
        width = prompt + members * rest
        return rows * (cost.masked(1, width) if members > 1 else cost.causal(1, width))

    rows = min(range(1, together + 1), key=unpadded)
    width = prompt + -(-together // rows) * rest
    width = bucket(width) if buckets else width
    masked = rows < together
    price = cost.masked(groups * rows, width) if masked else cost.causal(groups * rows, width)
    return _Layout(price, groups * rows * width, width, groups * rows * width * width if masked else 0)


def _cached(cost: CostModel, groups: int, together: int, prompt: int, rest: int) -> _Layout:
    """Prompts once, completions after their keys and values."""
    rows = groups * together
    price = cost.causal(groups, prompt) + cost.start + cost.masked(rows, rest, prompt)
    tokens = groups * prompt + rows * rest
    return _Layout(price, tokens, prompt + rest, rows * rest * (prompt + rest), rows * prompt)


def _whole_groups(batch: Batch, budget: int, rows: int) -> tuple[int, int]:
    """Groups of a pass, and completions of each."""
    group = min(batch.group, rows)
    whole = batch.prompt + group * batch.completion
    if whole <= budget:
        return min(budget // whole, max(1, rows // group)), group
    return 1, max(1, min(group, (budget - batch.prompt) // batch.completion))
