"""A layout's passes as tensors: token ids, positions, what belongs to what, and which outputs are scored with what.

All of it is made with NumPy and brought to the device before the first pass runs, so that no pass waits for the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ascent.training.batches.passes.equal_rows import Distinct
from ascent.training.batches.passes.layout import CachedPass, Continuations, RowPass
from ascent.training.batches.passes.sequences import Sequences, Tokens

Integers = NDArray[np.int64]
PAD = -1  # the segment of padding


@dataclass(frozen=True, slots=True)
class Scored:
    """M outputs of a pass: `places_M` in its flattened (rows x width) outputs, the tokens `targets_M` whose
    log-probability is asked there, and of which distinct sequence and which of its tokens that is."""

    places_M: Integers
    targets_M: Integers
    members_M: Integers
    offsets_M: Integers


@dataclass(frozen=True, slots=True)
class PackedPass:
    """Inputs of one pass of the model, (N, W) each, int64. `segments_NW` is 0 for the prompt, 1, 2, ... for its
    completions and PAD for padding; None, as the positions, where the pass is plainly causal from position 0 on.
    `places_M` is `scored.places_M` on the device."""

    ids_NW: torch.Tensor
    positions_NW: torch.Tensor | None
    segments_NW: torch.Tensor | None
    places_M: torch.Tensor
    scored: Scored


@dataclass(frozen=True, slots=True)
class PackedContinuations:
    """A pass after known prompts: `prompts_N` says which row of the prompts' pass each goes on from."""

    inputs: PackedPass
    prompts_N: torch.Tensor


@dataclass(frozen=True, slots=True)
class PackedCache:
    """The prompts' pass, the lengths of its prompts (n,), and the passes that go on from them."""

    prompts: PackedPass
    lengths_n: torch.Tensor
    continuations: tuple[PackedContinuations, ...]


class Packer:
    """Makes the tensors of passes over some distinct sequences, on `device`."""

    def __init__(self, sequences: Sequences, distinct: Distinct, device: torch.device) -> None:
        self._device = device
        self._prompts = [sequences.prompts[row] for row in distinct.rows_U]
        self._completions = [sequences.completions[row] for row in distinct.rows_U]

    def rows(self, chosen: RowPass) -> PackedPass:
        """Rows of a prompt and its completions, and empty ones: padding alone, of which nothing is asked."""
        shape = (chosen.height, chosen.width)
        ids_NW, positions_NW, segments_NW = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.full(shape, PAD)
        scores = []
        for number, row in enumerate(chosen.rows):
            prompt = self._prompts[row.members[0]]
            end = _write(0, prompt, ids_NW[number], positions_NW[number], 0)
            segments_NW[number, :end] = 0
            first = number * chosen.width + end - 1
            for segment, member in enumerate(row.members, 1):
                begin = end
                end = _write(begin, self._completions[member][:-1], ids_NW[number], positions_NW[number], len(prompt))
                segments_NW[number, begin:end] = segment
                scores.append(self._score(member, [first], number * chosen.width + begin))
        if not chosen.masked:
            return self._pass(ids_NW, None, None, scores)
        return self._pass(ids_NW, positions_NW, segments_NW, scores)

    def cached(self, chosen: CachedPass) -> PackedCache:
        """Prompts, and what goes on from their keys and values."""
        ids_nP = np.zeros((chosen.height, chosen.prompt_width), np.int64)
        lengths_n = np.ones(chosen.height, np.int64)
        lengths_n[: len(chosen.prompts)] = [len(self._prompts[member]) for member in chosen.prompts]
        scores = []
        for number, (first, members) in enumerate(zip(chosen.prompts, chosen.firsts, strict=True)):
            ids_nP[number, : lengths_n[number]] = self._prompts[first]
            last = number * chosen.prompt_width + int(lengths_n[number]) - 1
            scores += [self._score(member, [last], 0, most=1) for member in members]
        continuations = tuple(self._continuations(part) for part in chosen.continuations)
        return PackedCache(self._pass(ids_nP, None, None, scores), self._put(lengths_n), continuations)

    def nothing(self) -> PackedPass:
        """A pass over one token of which nothing is asked: where other ranks run the model, all must."""
        return self._pass(np.zeros((1, 1), np.int64), None, None, [])

    def _continuations(self, part: Continuations) -> PackedContinuations:
        shape = (part.height, part.width)
        ids_NW, positions_NW, segments_NW = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.full(shape, PAD)
        scores = []
        for number, member in enumerate(part.members):
            tokens = self._completions[member][:-1]
            end = _write(0, tokens, ids_NW[number], positions_NW[number], len(self._prompts[member]))
            segments_NW[number, :end] = 1
            scores.append(self._score(member, [], number * part.width))
        inputs = self._pass(ids_NW, positions_NW, segments_NW, scores)
        prompts_N = np.zeros(part.height, np.int64)  # an empty row sees the first prompt
        prompts_N[: len(part.prompts)] = part.prompts
        return PackedContinuations(inputs, self._put(prompts_N))

    def _pass(
        self, ids_NW: Integers, positions_NW: Integers | None, segments_NW: Integers | None, scores: Sequence[Scored]
    ) -> PackedPass:
        scored = joined(scores)
        return PackedPass(
            self._put(ids_NW),
            None if positions_NW is None else self._put(positions_NW),
            None if segments_NW is None else self._put(segments_NW),
            self._put(scored.places_M),
            scored,
        )

    def _put(self, array: Integers) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)

    def _score(self, member: int, first: Sequence[int], begin: int, most: int | None = None) -> Scored:
        """Of one completion: its first token at the output `first` if given, the others from the output `begin` on."""
        skipped = 1 - len(first)
        targets = self._completions[member][skipped:most]
        rest = np.arange(begin, begin + len(targets) - len(first))
        return Scored(
            np.concatenate([np.asarray(first, np.int64), rest]),
            targets,
            np.full(len(targets), member),
            np.arange(skipped, skipped + len(targets)),
        )


def result_index(scored: Scored, distinct: Distinct, width: int) -> Integers:
    """(B, C): where each row's tokens are among all M scores; M for padding."""
    total = len(scored.targets_M)
    table_UC = np.full((len(distinct.rows_U), width), total)
    table_UC[scored.members_M, scored.offsets_M] = np.arange(total)
    index_BC: Integers = table_UC[distinct.kind_B]
    return index_BC


def _write(begin: int, tokens: Tokens, ids_W: Integers, positions_W: Integers, position: int) -> int:
    end = begin + len(tokens)
    ids_W[begin:end] = tokens
    positions_W[begin:end] = np.arange(position, position + len(tokens))
    return end


def joined(parts: Sequence[Scored]) -> Scored:
    """One after another."""
    nothing = [np.zeros(0, np.int64)]
    return Scored(
        np.concatenate(nothing + [part.places_M for part in parts]),
        np.concatenate(nothing + [part.targets_M for part in parts]),
        np.concatenate(nothing + [part.members_M for part in parts]),
        np.concatenate(nothing + [part.offsets_M for part in parts]),
    )
