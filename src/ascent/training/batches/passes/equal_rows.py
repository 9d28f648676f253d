"""Rows that are equal, and rows that share their prompt.

A policy that has become sure samples the same completion many times. Without dropout equal rows have equal
log-probabilities, so each is computed once and its result is read by all; their gradients add up in it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ascent.training.batches.passes.sequences import Sequences


@dataclass(frozen=True, slots=True)
class Distinct:
    """`rows_U` are the first of each kind among B rows, `kind_B` says for each row which of them it equals."""

    rows_U: NDArray[np.int64]
    kind_B: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PromptGroup:
    """Distinct sequences with one prompt: `members` are their places in `Distinct.rows_U`."""

    prompt_length: int
    members: tuple[int, ...]
    completion_lengths: tuple[int, ...]


def distinct_rows(sequences: Sequences) -> Distinct:
    """Which of the sequences are equal in prompt and completion."""
    return _distinct(
        [(p.tobytes(), c.tobytes()) for p, c in zip(sequences.prompts, sequences.completions, strict=True)]
    )


def kinds(sequences: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """(B,): equal sequences have equal numbers."""
    return _distinct([each.tobytes() for each in sequences]).kind_B


def all_rows(sequences: Sequences) -> Distinct:
    """Each row as if it were of a kind of its own."""
    rows_B = np.arange(len(sequences.prompts), dtype=np.int64)
    return Distinct(rows_B, rows_B)


def prompt_groups(sequences: Sequences, distinct: Distinct) -> tuple[PromptGroup, ...]:
    """The distinct sequences by prompt, in the order of their first rows. Those without completion are left out: of
    them nothing is asked."""
    places = [place for place, row in enumerate(distinct.rows_U) if len(sequences.completions[row])]
    kinds = _distinct([sequences.prompts[distinct.rows_U[place]].tobytes() for place in places]).kind_B
    members: dict[int, list[int]] = {}
    for place, kind in zip(places, kinds, strict=True):
        members.setdefault(int(kind), []).append(place)
    return tuple(
        PromptGroup(
            prompt_length=len(sequences.prompts[distinct.rows_U[group[0]]]),
            members=tuple(group),
            completion_lengths=tuple(len(sequences.completions[distinct.rows_U[place]]) for place in group),
        )
        for group in members.values()
    )


def _distinct(keys: Sequence[Hashable]) -> Distinct:
    kinds: dict[Hashable, int] = {}
    first: list[int] = []
    kind_B = np.empty(len(keys), np.int64)
    for row, key in enumerate(keys):
        if key not in kinds:
            kinds[key] = len(first)
            first.append(row)
        kind_B[row] = kinds[key]
    return Distinct(np.asarray(first, np.int64), kind_B)
