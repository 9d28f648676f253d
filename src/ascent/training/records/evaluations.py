"""Evaluations as the records know them: numbered, kept apart from the training, every completion in one file.

There is one path for all of them: those of a run before and after training, TRL's (`eval_strategy`, `eval_on_start`),
and `trainer.evaluate()`. An example, with `eval_strategy: steps` and `eval_steps: 2`:

    evaluation 0, "before"   after step 0    groups eval-0-greedy-0, ... and eval-0-sampled-0, ...
    evaluation 1, "eval"     after step 2    groups eval-1-0, eval-1-1, ...
    evaluation 2, "eval"     after step 4    groups eval-2-0, ...: the seeds are those of evaluation 1
    evaluation 3, "after"    after step 4    groups eval-3-greedy-0, ...: the seeds are those of evaluation 0

Numbers are never used twice in a run, also not when it is resumed. Seeds and random numbers don't depend on the number,
so that two evaluations of one name differ by the policy alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import torch

from ascent import devices
from ascent.errors import InputError
from ascent.training.records.batch import BatchRecord
from ascent.training.records.recorder import EvaluationRecord, Recorder
from ascent.training.step.clock import StepClock
from ascent.training.step.ranks import Ranks
from ascent.types import EngineStats


@dataclass(slots=True)
class OpenEvaluation:
    """An evaluation that is going on. `metrics`, and `results` by task, are filled by whoever evaluates; rank 0's are
    kept."""

    number: int
    name: str
    step: int
    generation: int
    ranks: Ranks
    seed: int
    metrics: dict[str, float | None] = field(default_factory=dict)
    results: dict[str, dict[str, float]] | None = None
    batches: list[BatchRecord] = field(default_factory=list)
    _sampled: Counter[str] = field(default_factory=Counter)  # completions of this rank, by label

    def batch(self, rows: Sequence[dict[str, Any]], kind: str = "") -> BatchRecord:
        """Begin the next batch, of which this rank has `rows`, as many as every other rank. From here on random numbers
        are those of this batch in every evaluation of its kind (default: of its name)."""
        label = f"eval-{self.number}{kind and '-'}{kind}"
        batch = BatchRecord(
            rows,
            label,
            self.generation,
            self.step,
            self.ranks.rank,
            evaluation=self.name,
            draws=f"evaluation/{kind or self.name}",
            first=self._sampled[label],
            first_of_all=self._sampled[label] * self.ranks.count,
        )
        self._sampled[label] += len(rows)
        self.batches.append(batch)
        _seed_by(f"{self.seed}/{batch.draws}/{batch.rank}/{batch.first}")
        return batch

    def take(self, metrics: Mapping[str, Any] | None, gained: Mapping[str, float | None]) -> None:
        """Keep TRL's metrics: those that it returns, if they are numbers, and those that it logs, under its names."""
        self.metrics |= {name: float(value) for name, value in (metrics or {}).items() if isinstance(value, Real)}
        self.metrics |= {f"eval_{name}": value for name, value in gained.items()}


class Evaluations:
    """All evaluations of a training, one at a time. `current` is the one that is going on."""

    def __init__(
        self,
        ranks: Ranks,
        clock: StepClock,
        recorder: Recorder | None,
        run_name: str,
        seed: int,
        engine_stats: Callable[[], EngineStats | None],
    ) -> None:
        """`engine_stats` gives what the engines of all ranks did since it was called last; it is collective."""
        self.current: OpenEvaluation | None = None
        self.done = 0  # the next one's number, as far as this process knows
        self._ranks, self._clock, self._recorder, self._run_name = ranks, clock, recorder, run_name
        self._seed, self._engine_stats = seed, engine_stats

    @contextlib.contextmanager
    def evaluating(
        self,
        name: str,
        *,
        step: int,
        generation: int,
        apart: bool = True,
    ) -> Iterator[OpenEvaluation]:
        """What happens inside is an evaluation after `step` optimizer steps. Collective over all ranks.

        Its seconds count for no step, and (`apart`) the training draws the same random numbers as without it. At its
        end it is recorded with all its completions.
        """
        kept = 0 if self._recorder is None else self._recorder.next_evaluation()
        number = self._ranks.max_over_ranks(max(self.done, kept))
        evaluation = OpenEvaluation(number, name, step, generation, self._ranks, self._seed)
        self.current, self.done, began = evaluation, number + 1, time.perf_counter()
        try:
            with self._clock.aside(), devices.unchanged_random_state() if apart else contextlib.nullcontext():
                yield evaluation
        finally:
            self.current = None
        record = EvaluationRecord(
            number=number,
            name=name,
            step=step,
            generation=generation,
            completions=sum(self._ranks.exchange(sum(len(batch.completions) for batch in evaluation.batches))),
            seconds=time.perf_counter() - began,
            metrics=evaluation.metrics,
            engine=self._engine_stats(),
            results=evaluation.results,
        )
        devices.reset_peak()
        if self._recorder is not None:
            records = [record for batch in evaluation.batches for record in batch.records(self._run_name)]
            self._recorder.evaluation(record, records)


def check_evaluation_batch(args: Any, num_generations: int) -> None:
    """Raise InputError when an evaluation's batch does not hold whole groups (TRL does so for `eval_strategy` only)."""
    each = args.per_device_eval_batch_size
    batch = each * args.world_size
    if batch % num_generations:
        raise InputError(
            f"an evaluation's batch of {batch} completions (per_device_eval_batch_size={each} on "
            f"{args.world_size} processes) must be divisible by num_generations_eval={num_generations}",
            "Change per_device_eval_batch_size or num_generations_eval.",
        )


def _seed_by(words: str) -> None:
    """Python, numpy, torch and the device draw from a place that the words name."""
    seed = int.from_bytes(hashlib.sha256(words.encode()).digest()[:4])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
