"""A trainer of four small steps in this process, and a recorder that remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ascent import devices
from ascent.tracking.rollouts import RolloutRecord
from ascent.training.records.recorder import EvaluationRecord, Recorder, StepRecord
from ascent.training.records.signals.sums import GroupSums, sums_of


class Memory:
    """A Recorder that keeps what it is told."""

    tells_alarms = False

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.generations: list[tuple[int, list[RolloutRecord], bool]] = []
        self.progress: list[tuple[int, int]] = []
        self.evaluations: list[EvaluationRecord] = []
        self.pending: list[GroupSums] = []
        self.found: dict[str, float] = {}  # what watchers find in every step

    def sampled(self, done: int, total: int) -> None:
        self.progress.append((done, total))

    def generation(self, number: int, records: Sequence[RolloutRecord]) -> None:
        self.generations.append((number, list(records), False))
        self.pending += sums_of(records)

    def expect(self, programs: Sequence[tuple[str, str]]) -> None: ...

    def take_signals(self) -> Sequence[GroupSums]:
        taken, self.pending = self.pending, []
        return taken

    def next_evaluation(self) -> int:
        return 0

    def evaluation(self, record: EvaluationRecord, records: Sequence[RolloutRecord]) -> None:
        self.evaluations.append(record)
        self.generations.append((record.number, list(records), True))

    def settle(self) -> None: ...

    def step(self, record: StepRecord) -> Mapping[str, float]:
        self.steps.append(record)
        return self.found


def vowels(completions: list[str], **_: Any) -> list[float]:
    """A reward that even a random policy earns: the share of vowels."""
    return [sum(letter in "aeiou" for letter in text) / 10 for text in completions]


def coarse_vowels(completions: list[str], **_: Any) -> list[float]:
    """A reward that is the same for a whole group now and then: whether there are more than two vowels."""
    return [float(sum(letter in "aeiou" for letter in text) > 2) for text in completions]


def make_trainer(folder: Path, output: Path, recorder: Recorder | None = None, **settings: Any) -> Any:
    """A GRPOTrainer; `settings` are GRPOConfig's, or with `gpro` GPROConfig's, and `reward`, `engine`, `peft_config`,
    `staleness`, `offload`, `verify` of the trainer. It evaluates on `evaluated` rows."""
    from datasets import Dataset

    from ascent import GPROConfig, GRPOConfig, GRPOTrainer

    reward, engine, peft_config, staleness, offload, evaluated, verify, gpro = (
        settings.pop(name, default)
        for name, default in (
            ("reward", vowels),
            ("engine", None),
            ("peft_config", None),
            ("staleness", 0),
            ("offload", "none"),
            ("evaluated", 0),
            ("verify", True),
            ("gpro", False),
        )
    )
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_completion_length": 8,
        "learning_rate": 1e-2,
        "max_steps": 4,
        "logging_steps": 1,
        "bf16": False,
        "use_cpu": devices.kind() == "cpu",
        "report_to": "none",
        "save_strategy": "no",
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        **settings,
    }
    rows = [{"prompt": f"def f{number}(a):", "task_id": f"add/{number}"} for number in range(8)]
    return GRPOTrainer(
        str(folder),
        reward,
        (GPROConfig if gpro else GRPOConfig)(str(output), **arguments),
        train_dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[:evaluated]) if evaluated else None,
        recorder=recorder,
        engine=engine,
        peft_config=peft_config,
        staleness=staleness,
        verify=verify,
        offload=offload,
    )
