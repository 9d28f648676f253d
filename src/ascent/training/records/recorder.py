"""What a trainer tells while it trains, and the recorder that writes it into a run directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from ascent.tracking.rollout_writer import RolloutWriter
from ascent.tracking.rollouts import RolloutRecord
from ascent.tracking.run_directory import RunDirectory, append_json_line
from ascent.training.records.evidence import choose
from ascent.training.records.program_notes import ProgramNotes
from ascent.training.records.signals.sums import GroupSums, sums_of
from ascent.types import EngineStats, StepTimes


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One optimizer step of `total_steps`. `metrics` are TRL's, under TRL's names, and ours; `engine` is of all ranks,
    None when the step sampled nothing; so is `signal_groups`, which has columns with an entry for each group."""

    step: int
    total_steps: int
    epoch: float
    generation: int | None  # the one that the step was trained on; None with TRL's own path
    metrics: Mapping[str, float | None]
    times: StepTimes
    engine: EngineStats | None
    device: Mapping[str, Any]
    signal_groups: Mapping[str, Sequence[Any]] | None = None

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
            **({} if self.signal_groups is None else {"signal_groups": dict(self.signal_groups)}),
        }


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """One evaluation, after `step` optimizer steps, of which `generation` generations were sampled. `name` is "before",
    "during", "after", or TRL's prefix ("eval", "eval_NAME"). `completions`, `engine` and `results` are of all ranks;
    the last by task, None in TRL's own."""

    number: int
    name: str
    step: int
    generation: int
    completions: int
    seconds: float
    metrics: Mapping[str, float | None]
    engine: EngineStats | None
    results: Mapping[str, Mapping[str, float]] | None = None

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
            **({} if self.results is None else {"results": {task: dict(each) for task, each in self.results.items()}}),
        }


class Recorder(Protocol):
    """Receives every step and every sampled completion. `rank` 0 receives the steps. With `tells_alarms` it judges them
    too, and the trainer's own alarms are not told as well."""

    tells_alarms: bool

    def sampled(self, done: int, total: int) -> None:
        """A completion has finished; `done` of `total` of this generation."""
        ...

    def expect(self, programs: Sequence[tuple[str, str]]) -> None:
        """These programs (task id, text) stand in the generation that comes next, of which not all is known yet."""
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

    def take_signals(self) -> Sequence[GroupSums]:
        """What the generations showed that it was given since the last call; called once they are kept."""
        ...

    def step(self, record: StepRecord) -> Mapping[str, float] | None:
        """An optimizer step has ended (rank 0 only). Returns figures that somebody found in it, for trackers."""
        ...


@dataclass(slots=True)
class RunRecorder:
    """Writes into a run directory, completions in a thread beside, and shows each step to `watchers` (progress,
    alarms), which may return figures for trackers, and each evaluation to its own. What can't be written raises
    InputError from the call that waits for it. `evidence` are some completions of the last generation."""

    run: RunDirectory
    rank: int = 0
    notes: ProgramNotes | None = None
    watchers: list[Callable[[StepRecord], Mapping[str, float] | None]] = field(default_factory=list)
    evaluation_watchers: list[Callable[[EvaluationRecord], None]] = field(default_factory=list)
    on_sampled: Callable[[int, int], None] = lambda done, total: None
    tells_alarms: bool = False
    evidence: Sequence[RolloutRecord] = ()
    _rollouts: RolloutWriter = field(default_factory=RolloutWriter)
    _signals: list[GroupSums] = field(default_factory=list)  # the writer's thread adds; read once it is settled

    def sampled(self, done: int, total: int) -> None:
        """See Recorder."""
        self.on_sampled(done, total)

    def generation(self, number: int, records: Sequence[RolloutRecord]) -> None:
        """See Recorder."""
        self._rollouts.write(self.run.generation_rollouts(number, self.rank), records, self._look_at)

    def expect(self, programs: Sequence[tuple[str, str]]) -> None:
        """See Recorder."""
        if (notes := self.notes) is not None:
            self._rollouts.beside(lambda: notes.expect(programs))

    def _look_at(self, records: Sequence[RolloutRecord]) -> Sequence[RolloutRecord]:
        """A generation with its notes, and what it shows. In the writer's thread."""
        records = self._with_notes(records)
        self._signals += sums_of(records)
        self.evidence = choose(records)
        return records

    def _with_notes(self, records: Sequence[RolloutRecord]) -> Sequence[RolloutRecord]:
        return records if self.notes is None else self.notes.complete(records)

    def take_signals(self) -> Sequence[GroupSums]:
        """See Recorder."""
        taken, self._signals = self._signals, []
        return taken

    def settle(self) -> None:
        """See Recorder."""
        self._rollouts.settle()

    def next_evaluation(self) -> int:
        """See Recorder."""
        return self.run.next_evaluation()

    def evaluation(self, record: EvaluationRecord, records: Sequence[RolloutRecord]) -> None:
        """See Recorder."""
        if records:
            path = self.run.evaluation_rollouts(record.number, record.step, self.rank)
            self._rollouts.write(path, records, self._with_notes)
        self.settle()
        if self.rank == 0:
            append_json_line(self.run.evaluations, record.to_json())
            for watch in self.evaluation_watchers:
                watch(record)

    def step(self, record: StepRecord) -> Mapping[str, float]:
        """See Recorder."""
        self.settle()
        append_json_line(self.run.metrics, record.to_json())
        found: dict[str, float] = {}
        for watch in self.watchers:
            found |= watch(record) or {}
        return found

    def close(self) -> None:
        """Write what was given; nothing may be given any more."""
        self._rollouts.close()
