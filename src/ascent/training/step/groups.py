"""Turns a local batch of prompts into requests to the engine: one a group, with seeds that don't depend on batching.

An example with num_generations 4, split over two ranks of six prompts each (three groups in all):

    rank 0   places 0-3  group 12-0, completions 0 to 3     places 4-5  group 12-1, completions 0 and 1
    rank 1   places 0-1  group 12-1, completions 2 and 3    places 2-5  group 12-2, completions 0 to 3

On rank 1 the first request has n 2, first 0 and offset 2, and the seed of its group plus 2: whatever the number of
ranks, completion 2 of group 12-1 is sampled with the same seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ascent.types import Completion, RolloutRequest, Sampling


@dataclass(frozen=True, slots=True)
class Begun:
    """A group's completions that `ended` in an earlier generation, and what was sampled of the others until it was
    closed: `parts`, with finish_reason "abort". Together they are all of the group, each in the order of its index."""

    ended: tuple[Completion, ...]
    parts: tuple[Completion, ...]


@dataclass(frozen=True, slots=True)
class LocalGroup:
    """A request and where its completions belong: `first` is the place of completion 0 in the local batch, `offset`
    its place in the whole group, which may be spread over ranks. `row` is the dataset's row of the prompt. Of a group
    that was `begun` before, only what is missing is sampled (`step/parts.py`)."""

    request: RolloutRequest
    first: int
    offset: int
    row: Mapping[str, Any] = field(default_factory=dict, compare=False)
    begun: Begun | None = field(default=None, compare=False)

    @property
    def coming(self) -> int:
        """How many of its completions are still to be sampled."""
        return self.request.n if self.begun is None else len(self.begun.parts)


def group_requests(
    prompts: Sequence[Sequence[int]],
    num_generations: int,
    sampling: Sampling,
    *,
    label: str,
    draws: str | None = None,
    first: int = 0,
    rank: int = 0,
    seed: int | None = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
) -> list[LocalGroup]:
    """Group a rank's part of a batch, in which each prompt stands `num_generations` times in a row over all ranks.

    `label` names the generation, `first` is the place of the batch in it, `rows` are the dataset's rows of the prompts.
    Completion k of a group has the seed `group seed + k`, whatever rank samples it; the group's seed is made of `seed`,
    of `draws` (default: the label) and of the group's number. Raises ValueError when the prompts of one group differ.
    """
    groups: list[LocalGroup] = []
    start = first + rank * len(prompts)
    for position, prompt in enumerate(prompts):
        number, offset = divmod(start + position, num_generations)
        group_id = f"{label}-{number}"
        if groups and groups[-1].request.group_id == group_id:
            previous = groups[-1]
            if previous.request.prompt_ids != tuple(prompt):
                raise ValueError(
                    f"group {group_id}: prompts differ within the group (local places {previous.first} on)"
                )
            groups[-1] = replace(previous, request=replace(previous.request, n=previous.request.n + 1))
            continue
        base = None if seed is None else group_seed(seed, f"{draws or label}-{number}") + offset
        request = RolloutRequest(group_id, tuple(prompt), 1, sampling, base)
        groups.append(LocalGroup(request, position, offset, rows[position] if rows is not None else {}))
    return groups


def whole_groups(
    prompts: Sequence[Sequence[int]],
    num_generations: int,
    sampling: Sampling,
    *,
    label: str,
    rank: int,
    ranks: int,
    seed: int | None,
    rows: Sequence[Mapping[str, Any]],
) -> list[LocalGroup]:
    """One whole group a prompt, all on this rank: group k of rank r is number `k * ranks + r` of generation `label`."""
    return [
        LocalGroup(
            RolloutRequest(
                group_id := f"{label}-{number * ranks + rank}",
                tuple(prompt),
                num_generations,
                sampling,
                None if seed is None else group_seed(seed, group_id),
            ),
            first=number * num_generations,
            offset=0,
            row=row,
        )
        for number, (prompt, row) in enumerate(zip(prompts, rows, strict=True))
    ]


def group_seed(seed: int, group_id: str) -> int:
    """48 bits made of the run's seed and the group, so that neighbouring seeds share no completions."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{group_id}".encode()).digest()[:6])
