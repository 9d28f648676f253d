"""Dynamic sampling on two ranks, for test_two_ranks: scenarios that `two_ranks.py` runs in both processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.ragged_engine import RaggedEngine
from tests.small_trainer import Memory, make_trainer

Write = Callable[..., None]  # of a scenario: its name, how it ended, and what else there is to tell


def by_rank(rank: int, odd: float) -> Callable[..., list[float]]:
    """On rank 0 odd tasks have no signal, on rank 1 those that four divides have any."""

    def reward(completions: list[str], task_id: list[str], **_: Any) -> list[float]:
        numbers = [int(task.split("/")[1]) for task in task_id]
        return [
            odd if number % (2 if rank == 0 else 4) else len(set(text)) / 10
            for number, text in zip(numbers, completions, strict=True)
        ]

    return reward


def drawn(policy: Path, folder: Path, rank: int, write: Write) -> None:
    """Ranks that need different numbers of groups; from the middle on once more, resumed."""

    def run(**more: Any) -> Memory:
        memory = Memory()
        settings = {"max_resample_factor": 12.0, "max_steps": 4, "save_steps": 2, "save_strategy": "steps"}
        reward = by_rank(rank, 0.5)
        make_trainer(policy, folder / "drawn", memory, reward=reward, **settings).train(**more)
        return memory

    def groups(memory: Memory) -> list[Any]:
        records = [record for _, generation, _ in memory.generations for record in generation]
        return [
            (each.group_id, each.task_id, each.kept, [int(token) for token in each.completion_ids]) for each in records
        ]

    whole = run()
    resumed = run(resume_from_checkpoint=str(folder / "drawn" / "checkpoint-2"))
    metrics = [
        {name: value for name, value in step.metrics.items() if name.startswith(("sampling/", "tasks/", "frac_"))}
        for step in whole.steps
    ]
    write("drawn", None, groups=groups(whole), resumed=groups(resumed), metrics=metrics)


def late(policy: Path, folder: Path, rank: int, write: Write) -> None:
    """Generations that each rank closes by itself; from the middle on once more, resumed."""

    def run(**more: Any) -> list[Any]:
        memory = Memory()
        settings: dict[str, Any] = {
            "use_vllm": True, "vllm_mode": "server", "seeded_sampling": True, "verify": False,
            "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "max_completion_length": 30,
            "oversample_factor": 2.0, "max_straggler_age": 2, "max_steps": 6, "save_steps": 3,
            "save_strategy": "steps",
        }  # fmt: skip
        make_trainer(policy, folder / "late", memory, engine=RaggedEngine(), **settings).train(**more)
        records = [record for _, generation, _ in memory.generations for record in generation]
        return [
            (each.group_id, each.index, each.generation, each.kept, [int(token) for token in each.completion_ids])
            for each in records
        ]

    whole = run()
    write("late", None, whole=whole, resumed=run(resume_from_checkpoint=str(folder / "late" / "checkpoint-3")))


def fails(policy: Path, folder: Path, rank: int, write: Write) -> None:
    """The reward function fails on rank 1 alone."""

    def reward(completions: list[str], trainer_state: Any, **_: Any) -> list[float]:
        if rank == 1 and trainer_state.global_step == 1:
            raise ValueError("not here")
        return [len(set(text)) / 10 for text in completions]

    trainer = make_trainer(policy, folder / "fails", reward=reward, max_resample_factor=2.0)
    error: Exception | None = None
    try:
        trainer.train()
    except Exception as ended:  # noqa: BLE001 - it is what the test looks at
        error = ended
    write("reward-fails", error, agreed=trainer.agreement.ended_with is error)


def spread(policy: Path, folder: Path, rank: int, write: Write) -> None:
    """Groups of four, of which each rank has two."""
    error: Exception | None = None
    try:
        make_trainer(policy, folder / "spread", max_resample_factor=2.0, per_device_train_batch_size=2,
                     steps_per_generation=1)  # fmt: skip
    except Exception as ended:  # noqa: BLE001 - it is what the test looks at
        error = ended
    write("spread", error)


SCENARIOS = (drawn, late, fails, spread)
