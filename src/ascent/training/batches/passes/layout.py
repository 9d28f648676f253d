"""How distinct sequences are laid out for a forward pass, chosen by what each way costs.

Three ways, all with the same values:

- `plain`: each sequence a row of its own, padded on the right, with the causal attention kernel.
- `rows`: a prompt and several of its completions one after another in a row. Positions go on from the prompt's end for
  each completion, and a mask lets a completion see its prompt and itself. The prompt is computed once a row, but each
  row's attention costs the square of its width.
- `cache`: the prompts once, and their keys and values handed to all of their completions, which are rows of their own.

The last token of a completion predicts nothing that is asked for, so it takes no part: a completion of n tokens adds
n - 1 to its row.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ascent.memory.cost import CostModel
from ascent.memory.widths import exact
from ascent.training.batches.passes.cutting import Cut, cut_into_passes
from ascent.training.batches.passes.equal_rows import PromptGroup

Way = Literal["plain", "rows", "cache"]
Widths = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt and some of its completions: `members` are places in `Distinct.rows_U`."""

    members: tuple[int, ...]
    width: int


@dataclass(frozen=True, slots=True)
class RowPass:
    """One pass of the model over rows padded to `width`; `masked` when a row holds more than one completion. With empty
    rows there are `height`."""

    rows: tuple[Row, ...]
    width: int
    masked: bool
    height: int


@dataclass(frozen=True, slots=True)
class Continuations:
    """One pass over completions of which the prompts' keys and values are known: `prompts` are places in
    `CachedPass.prompts`. With empty rows there are `height`."""

    members: tuple[int, ...]
    prompts: tuple[int, ...]
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class CachedPass:
    """Prompts computed once (of each, one member that has it), then their completions.

    `firsts` are all members: the prompt's last token predicts each one's first. Those of a single token need no more.
    With empty rows there are `height` prompts.
    """

    prompts: tuple[int, ...]
    prompt_width: int
    height: int
    firsts: tuple[tuple[int, ...], ...]
    continuations: tuple[Continuations, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """All passes of one call, in the order in which they run. `cost` is in the units of the cost model, `tokens` are
    those computed, with padding."""

    way: Way
    passes: tuple[RowPass | CachedPass, ...]
    cost: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What a layout may use. `widths` and `rows` round up widths and numbers of rows. `one_pass`: a single pass of the
    model (its layers' weights are gathered from other ranks, and all ranks must do that equally often). `window`: a
    sequence longer than that has a row of its own. `tokens`: of one pass, where more than one row is in it."""

    widths: Widths
    one_pass: bool = False
    window: int | None = None
    tokens: int | None = None
    rows: Widths = exact


def plain(groups: Sequence[PromptGroup], cost: CostModel, limits: Limits) -> Layout:
    """Each sequence a row of its own."""
    return _row_layout("plain", [row for group in groups for row in _rows(group, len(group.members))], cost, limits)


def shared_rows(groups: Sequence[PromptGroup], cost: CostModel, limits: Limits) -> Layout:
    """Rows of as many completions as are worth their attention."""
    if limits.one_pass and any(_beyond_window(group, limits) for group in groups):
        # the mask of shared rows would be that of all rows, and take the window from those that need it
        return replace(plain(groups, cost, limits), way="rows")
    return _row_layout("rows", [row for group in groups for row in _best_rows(group, cost, limits)], cost, limits)


def cached(groups: Sequence[PromptGroup], cost: CostModel, limits: Limits) -> Layout:
    """Prompts once, completions after their keys and values."""
    groups = sorted(groups, key=lambda group: -group.prompt_length)
    cuts = cut_into_passes(
        [limits.widths(group.prompt_length) for group in groups],
        [_continued(group, cost) for group in groups],
        cost.causal,
        cost.start,
        limits.tokens,
        limits.rows,
    )
    passes, total, tokens = [], 0.0, 0
    for cut in cuts:
        block = [groups[place] for place in cut.places]
        continuations = _continuations(block, cut.width, cost, limits)
        passes.append(
            CachedPass(
                prompts=tuple(group.members[0] for group in block),
                prompt_width=cut.width,
                height=cut.height,
                firsts=tuple(group.members for group in block),
                continuations=continuations,
            )
        )
        total += cost.start + cost.causal(cut.height, cut.width)
        tokens += cut.height * cut.width
        for part in continuations:
            total += cost.start + cost.masked(part.height, part.width, cut.width)
            tokens += part.height * part.width
    return Layout("cache", tuple(passes), total, tokens)


def _row_layout(way: Way, rows: Sequence[Row], cost: CostModel, limits: Limits) -> Layout:
    if limits.one_pass:
        kinds = [(list(rows), any(len(row.members) > 1 for row in rows))] if rows else []
    else:
        kinds = [
            ([row for row in rows if len(row.members) == 1], False),
            ([row for row in rows if len(row.members) > 1], True),
        ]
    passes, total, tokens = [], 0.0, 0
    for chosen, masked in kinds:
        price = cost.masked if masked else cost.causal
        chosen = sorted(chosen, key=lambda row: -row.width)
        widths = [limits.widths(row.width) for row in chosen]
        if limits.one_pass:
            cuts = [Cut(range(len(chosen)), widths[0], limits.rows(len(chosen)))]
        else:
            cuts = cut_into_passes(widths, None, price, cost.start, limits.tokens, limits.rows)
        for cut in cuts:
            passes.append(RowPass(tuple(chosen[place] for place in cut.places), cut.width, masked, cut.height))
            total += cost.start + price(cut.height, cut.width)
            tokens += cut.height * cut.width
    return Layout(way, tuple(passes), total, tokens)


def _best_rows(group: PromptGroup, cost: CostModel, limits: Limits) -> list[Row]:
    count = len(group.members)
    if count == 1 or _beyond_window(group, limits):
        return _rows(group, count)
    choices = [_rows(group, rows) for rows in _counts(count)]
    return min(choices, key=lambda rows: _unpadded(rows, cost))


def _beyond_window(group: PromptGroup, limits: Limits) -> bool:
    longest = group.prompt_length + max(group.completion_lengths) - 1
    return limits.window is not None and longest > limits.window


def _unpadded(rows: Sequence[Row], cost: CostModel) -> float:
    return sum(cost.masked(1, row.width) if len(row.members) > 1 else cost.causal(1, row.width) for row in rows)


def _counts(most: int) -> list[int]:
    """Numbers of rows worth a try: every one up to 8, then fewer; always `most` itself."""
    counts, number = [], 1
    while number < most:
        counts.append(number)
        number += max(1, number // 8)
    return [*counts, most]


def _rows(group: PromptGroup, count: int) -> list[Row]:
    """The completions spread over `count` rows of about equal width: the longest first, each to the shortest row."""

    order = sorted(range(len(group.members)), key=lambda place: -group.completion_lengths[place])
    heap: list[tuple[int, int, list[int]]] = [(group.prompt_length, row, []) for row in range(count)]
    for place in order:
        width, row, members = heap[0]
        members.append(group.members[place])
        heapq.heapreplace(heap, (width + group.completion_lengths[place] - 1, row, members))
    return [Row(tuple(members), width) for width, _, members in sorted(heap, key=lambda entry: entry[1]) if members]


def _continued(group: PromptGroup, cost: CostModel) -> float:
    """What a group's completions cost for each token that its prompt is wide."""
    return sum(_pair_cost(cost, length - 1) for length in group.completion_lengths if length > 1)


def _pair_cost(cost: CostModel, width: int) -> float:
    return cost.masked(1, width, 1) - cost.masked(1, width)


def _continuations(
    block: Sequence[PromptGroup], prompt_width: int, cost: CostModel, limits: Limits
) -> tuple[Continuations, ...]:
    members = [
        (length - 1, place, member)
        for place, group in enumerate(block)
        for member, length in zip(group.members, group.completion_lengths, strict=True)
        if length > 1
    ]
    members.sort(key=lambda entry: -entry[0])
    cuts = cut_into_passes(
        [limits.widths(width) for width, _, _ in members],
        None,
        lambda rows, width: cost.masked(rows, width, prompt_width),
        cost.start,
        limits.tokens,
        limits.rows,
    )
    return tuple(
        Continuations(
            tuple(members[place][2] for place in cut.places),
            tuple(members[place][1] for place in cut.places),
            cut.width,
            cut.height,
        )
        for cut in cuts
    )
