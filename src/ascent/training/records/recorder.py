"""What a trainer tells while it trains, and the recorder that writes it into a run directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from ascent.tracking.rollout_writer import RolloutWriter
from ascent.tracking.rollouts import RolloutRecord
from ascent.tracking.run_directory import RunDirectory, append_json_line
from ascent.types import EngineStats, StepTimes


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One optimizer step of `total_steps`. `metrics` are TRL's, under TRL's names; `engine` is of all ranks, None when
    the step sampled nothing."""

    step: int
    total_steps: int
    epoch: float
    generation: int | None  # the one that the step was trained on; None with TRL's own path
    metrics: Mapping[str, float | None]
    times: StepTimes
    engine: EngineStats | None
    device: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As it stands in metrics.jsonl."""
        return {
            "step": self.step,
            "total_steps": self.total_steps,
            "epoch": self.epoch,
            "generation": self.generation,
            **self.metrics,
            "times": asdict(self.times),
            "engine": None if self.engine is None else asdict(self.engine),
            "device": dict(self.device),
        }


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """One evaluation, after `step` optimizer steps, of which `generation` generations were sampled. `name` is "before",
    "after", or TRL's prefix ("eval", "eval_NAME"). `completions` and `engine` are of all ranks."""

    number: int
    name: str
    step: int
    generation: int
    completions: int
    seconds: float
    metrics: Mapping[str, float | None]
    engine: EngineStats | None

    def to_json(self) -> dict[str, Any]:
        """As it stands in evaluations.jsonl."""
        return {
            "evaluation": self.number,
            "name": self.name,
            "step": self.step,
            "generation": self.generation,
            **self.metrics,
            "completions": self.completions,
            "seconds": self.seconds,
            "engine": None if self.engine is None else asdict(self.engine),
        }


class Recorder(Protocol):
    """Receives every step and every sampled completion. `rank` 0 receives the steps."""

    def sampled(self, done: int, total: int) -> None:
        """A completion has finished; `done` of `total` of this generation."""
        ...

    def generation(self, number: int, records: Sequence[RolloutRecord]) -> None:
        """A generation of this rank has been scored."""
        ...

    def next_evaluation(self) -> int:
        """The first number that no evaluation has which is kept already."""
        ...

    def evaluation(self, record: EvaluationRecord, records: Sequence[RolloutRecord]) -> None:
        """An evaluation has ended; `records` are all completions that this rank sampled in it."""
        ...

    def settle(self) -> None:
        """Called on every rank before anything counts the generations that it was given: they are kept when this
        returns."""
        ...

    def step(self, record: StepRecord) -> None:
        """An optimizer step has ended (rank 0 only)."""
        ...


@dataclass(slots=True)
class RunRecorder:
    """Writes into a run directory, completions in a thread beside, and shows each step to `watchers` (progress,
    alarms). What can't be written raises InputError from the call that waits for it."""

    run: RunDirectory
    rank: int = 0
    watchers: list[Callable[[StepRecord], None]] = field(default_factory=list)
    on_sampled: Callable[[int, int], None] = lambda done, total: None
    _rollouts: RolloutWriter = field(default_factory=RolloutWriter)

    def sampled(self, done: int, total: int) -> None:
        """See Recorder."""
        self.on_sampled(done, total)

    def generation(self, number: int, records: Sequence[RolloutRecord]) -> None:
        """See Recorder."""
        self._rollouts.write(self.run.generation_rollouts(number, self.rank), records)

    def settle(self) -> None:
        """See Recorder."""
        self._rollouts.settle()

    def next_evaluation(self) -> int:
        """See Recorder."""
        return self.run.next_evaluation()

    def evaluation(self, record: EvaluationRecord, records: Sequence[RolloutRecord]) -> None:
        """See Recorder."""
        if records:
            self._rollouts.write(self.run.evaluation_rollouts(record.number, record.step, self.rank), records)
        self.settle()
        if self.rank == 0:
            append_json_line(self.run.evaluations, record.to_json())

    def step(self, record: StepRecord) -> None:
        """See Recorder."""
        self.settle()
        append_json_line(self.run.metrics, record.to_json())
        for watch in self.watchers:
            watch(record)

    def close(self) -> None:
        """Write what was given; nothing may be given any more."""
        self._rollouts.close()
