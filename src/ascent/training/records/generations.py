"""The recording of generations, once all is known of their completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ascent.training.batches.correction import Corrected
from ascent.training.batches.rows import NEWEST, PLACE
from ascent.training.records.batch import OUT_OF_BOUNDS, BatchRecord
from ascent.training.records.recorder import Recorder
from ascent.training.records.signals.merged import Signals, merged
from ascent.training.records.signals.sums import GroupSums
from ascent.training.step.ranks import Ranks
from ascent.training.step.sampler_difference import newest


class Generations:
    """Gives each generation to the recorder; where importance ratios come from the training forward, after it."""

    def __init__(self, recorder: Recorder | None, run_name: str, ranks: Ranks, device: torch.device) -> None:
        self._recorder, self._run_name, self._ranks, self._device = recorder, run_name, ranks, device
        self._waiting: list[BatchRecord] = []

    def keep(self, batch: BatchRecord) -> None:
        """Record a rank's part of a generation."""
        if self._recorder is not None:
            self._recorder.generation(batch.generation, batch.records(self._run_name))

    def wait(self, batch: BatchRecord) -> dict[str, Any]:
        """Keep it when `release` is called. Returns what its rows carry until then, (B,) each."""
        self._waiting.append(batch)
        if self._recorder is not None:
            self._recorder.expect(batch.programs())
        first = self._first(batch)
        return {
            PLACE: torch.arange(first, first + len(batch.rows), device=self._device),
            NEWEST: newest(batch).to(self._device),
        }

    def release(self, corrected: Corrected | None) -> None:
        """Record what waited, with what the training forwards showed of its rows, by the numbers that they carried."""
        waiting, self._waiting = self._waiting, []
        for batch in waiting:
            if corrected is not None:
                self._take(batch, corrected)
            self.keep(batch)

    def settle(self, *, sampled: bool) -> Signals | None:
        """Wait until everything is recorded. Returns what the generations of all ranks since the last call showed; None
        where none was `sampled`, which is the same on all ranks. Collective."""
        here: Sequence[GroupSums] = ()
        if self._recorder is not None:
            self._recorder.settle()
            here = self._recorder.take_signals()
        return merged(self._ranks.exchange(here)) if sampled else None

    def _take(self, batch: BatchRecord, corrected: Corrected) -> None:
        first = self._first(batch)
        for place in range(len(batch.rows)):
            if first + place in corrected.masked:
                batch.masked.setdefault(place, OUT_OF_BOUNDS)
            if first + place in corrected.logps:
                batch.trainer_logps[place] = corrected.logps[first + place]

    def _first(self, batch: BatchRecord) -> int:
        """The number of a batch's first row: no other row of the training has it."""
        return (batch.generation * self._ranks.count + batch.rank) * len(batch.rows)
