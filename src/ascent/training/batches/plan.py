"""Which rows go into which forward pass: sub-batches of at most so many tokens, dealt out to ranks by cost.

Nothing here touches a tensor. With shared prompts a group's prompt counts once, and equal completions count once; so
rows of one prompt stay together, and are parted only where they are more than a sub-batch holds. Without, a sub-batch
is padded to its longest row, so rows of like length go together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

from ascent.training.batches.rows import Length

Places = list[int]  # of rows
Cost = Callable[[int], float]  # what a pass over a sequence of so many tokens costs, in any unit


def sub_batches(lengths: Sequence[Length], places: Sequence[int], budget: int, *, shared: bool) -> list[Places]:
    """`places` in parts of at most `budget` tokens; a row that is longer has a part of its own."""
    if not shared:
        return _padded(lengths, places, budget)
    parts: list[Places] = []
    filled = 0
    for bundle in sorted(_bundles(lengths, places, budget), key=lambda each: -tokens_of(lengths, each, shared=True)):
        tokens = tokens_of(lengths, bundle, shared=True)
        if not parts or filled + tokens > budget:
            parts.append([])
            filled = 0
        parts[-1] += bundle
        filled += tokens
    return parts


def over_ranks(
    lengths: Sequence[Length], places: Sequence[int], ranks: int, cost: Cost, *, shared: bool
) -> list[Places]:
    """`places` dealt out to `ranks` so that the slowest has as little to do as may be: dearest first, each to the rank
    with the least (R. L. Graham, "Bounds on multiprocessing timing anomalies", 1969). Rows of one prompt stay together
    unless they are more than a rank's fair part."""
    if not shared:
        bundles = [[place] for place in places]
    else:
        fair = tokens_of(lengths, list(places), shared=True) // ranks
        bundles = _bundles(lengths, places, max(fair, 1))
    costs = [sum(cost(lengths[place].tokens) for place in bundle) for bundle in bundles]
    if shared:
        costs = [
            price * tokens_of(lengths, bundle, shared=True) / sum(lengths[place].tokens for place in bundle)
            for price, bundle in zip(costs, bundles, strict=True)
        ]
    loads, dealt = [0.0] * ranks, [[] for _ in range(ranks)]  # type: tuple[list[float], list[Places]]
    for number in sorted(range(len(bundles)), key=lambda each: (-costs[each], each)):
        rank = loads.index(min(loads))
        dealt[rank] += bundles[number]
        loads[rank] += costs[number]
    return dealt


def in_two(
    lengths: Sequence[Length] | None, places: Sequence[int], fraction: float, *, shared: bool
) -> tuple[Places, Places]:
    """`places` in two: the first ones, a `fraction` of them or a little more, and the others. With shared prompts those
    of one prompt stay together."""
    wanted = math.ceil(fraction * len(places))
    if lengths is None or not shared:
        return list(places[:wanted]), list(places[wanted:])
    by_prompt: dict[int, Places] = defaultdict(list)
    for place in places:
        by_prompt[lengths[place].prompt].append(place)
    first: Places = []
    others: Places = []
    for bundle in by_prompt.values():
        (first if len(first) < wanted else others).extend(bundle)
    return first, others


def tokens_of(lengths: Sequence[Length], places: Sequence[int], *, shared: bool) -> int:
    """How many tokens a pass over these rows computes, padding included."""
    if not places:
        return 0
    if not shared:
        widest = max(lengths[place].prompt_tokens for place in places)
        return len(places) * (widest + max(lengths[place].completion_tokens for place in places))
    prompts = {lengths[place].prompt: lengths[place].prompt_tokens for place in places}
    completions = {lengths[place].completion: lengths[place].completion_tokens for place in places}
    return sum(prompts.values()) + sum(completions.values())


def _padded(lengths: Sequence[Length], places: Sequence[int], budget: int) -> list[Places]:
    parts: list[Places] = []
    prompt = completion = 0  # the widest of the part
    for place in sorted(places, key=lambda each: (-lengths[each].tokens, each)):
        length = lengths[place]
        widest = max(prompt, length.prompt_tokens), max(completion, length.completion_tokens)
        if parts and (len(parts[-1]) + 1) * sum(widest) <= budget:
            parts[-1].append(place)
            prompt, completion = widest
        else:
            parts.append([place])
            prompt, completion = length.prompt_tokens, length.completion_tokens
    return parts


def _bundles(lengths: Sequence[Length], places: Sequence[int], budget: int) -> list[Places]:
    """Rows by prompt, each bundle of at most `budget` tokens; equal rows are never parted."""
    by_prompt: dict[int, dict[int, Places]] = defaultdict(lambda: defaultdict(list))
    for place in places:
        by_prompt[lengths[place].prompt][lengths[place].completion].append(place)
    bundles: list[Places] = []
    for completions in by_prompt.values():
        first = lengths[next(iter(completions.values()))[0]]
        filled = budget + 1
        for rows in sorted(completions.values(), key=lambda each: -lengths[each[0]].completion_tokens):
            tokens = lengths[rows[0]].completion_tokens
            if filled + tokens > budget:
                bundles.append([])
                filled = first.prompt_tokens
            bundles[-1] += rows
            filled += tokens
    return bundles
