"""Held-out evaluation: greedy and sampled completions of tasks never trained on, judged by all their tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object

from ascent.errors import InputError
from ascent.rewards.code import CodeReward
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunDirectory
from ascent.training.judging import Judged, Receive, sample_and_judge
from ascent.training.records.evaluations import OpenEvaluation
from ascent.training.step.groups import LocalGroup
from ascent.types import Completion, Sampling, Task

if TYPE_CHECKING:
    from ascent.training.trainer import GRPOTrainer


@dataclass(frozen=True, slots=True)
class TaskResult:
    """One held-out task. `greedy` and `sampled` are shares of completions that passed all tests; `completion` is the
    greedy one, `prompt` the text that it answers (the last message of a chat)."""

    task_id: str
    family: str
    prompt: str
    greedy: float
    sampled: float
    completion: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of all tasks, in order, with the weights of `step` optimizer steps."""

    results: tuple[TaskResult, ...]
    step: int = 0

    @property
    def greedy(self) -> float:
        """Mean pass rate of the greedy completions."""
        return sum(result.greedy for result in self.results) / len(self.results)

    @property
    def sampled(self) -> float:
        """Mean pass rate of the sampled completions."""
        return sum(result.sampled for result in self.results) / len(self.results)

    def families(self) -> dict[str, Evaluation]:
        """The same by family, in order of name."""
        names = sorted({result.family for result in self.results})
        return {name: Evaluation(tuple(r for r in self.results if r.family == name), self.step) for name in names}


def asked_text(task: Task) -> str:
    """What the policy answers: the prompt, of a chat the last message."""
    return task.prompt if isinstance(task.prompt, str) else str(task.prompt[-1]["content"])


def save_evaluations(run: RunDirectory, before: Evaluation | None, after: Evaluation | None) -> None:
    """Write `evaluation.json`, whole or not at all."""
    summary = {
        when: None if evaluation is None else asdict(evaluation)
        for when, evaluation in (("before", before), ("after", after))
    }
    run_directory.write_json(run.evaluation, summary)


def saved_before(run: RunDirectory) -> Evaluation | None:
    """The evaluation before training that a run kept, so that a resumed run still has it; None when there is none.

    Raises InputError when the file can't be understood.
    """
    if not run.evaluation.is_file():
        return None
    try:
        stored = json.loads(run.evaluation.read_text(encoding="utf-8"))["before"]
        return (
            None
            if stored is None
            else Evaluation(tuple(TaskResult(**row) for row in stored["results"]), stored.get("step", 0))
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{run.evaluation} is not what a run writes: {type(error).__name__}: {error}") from error


def evaluate(trainer: GRPOTrainer, reward: CodeReward, tasks: Sequence[Task], *, samples: int, name: str) -> Evaluation:
    """Sample each task once greedily and `samples` times at the training temperature, and judge all completions.

    Collective: every process takes its share of the tasks, all get the whole result. Batches are no larger than the
    training's. Seeds and random numbers don't depend on the weights or on `name` (such as "before"), so two evaluations
    of a run differ by the policy alone. It is recorded as all evaluations are (`trainer.evaluating`).
    """
    was_training = trainer.model.training
    trainer.model.eval()
    try:
        with trainer.evaluating(name) as evaluation:
            trainer.sync_engine()
            greedy = _sample(trainer, evaluation, reward, tasks, 1, "greedy")
            sampled = _sample(trainer, evaluation, reward, tasks, samples, "sampled")
            results: list[TaskResult] = gather_object(_results(tasks, greedy, sampled))
            order = {task.id: place for place, task in enumerate(tasks)}
            found = Evaluation(tuple(sorted(results, key=lambda result: order[result.task_id])), evaluation.step)
            evaluation.metrics |= {"greedy": found.greedy, "sampled": found.sampled}
            evaluation.results = {
                result.task_id: {"greedy": result.greedy, "sampled": result.sampled, "samples": samples}
                for result in found.results
            }
    finally:
        trainer.model.train(was_training)
    return found


@dataclass(frozen=True, slots=True)
class _TrainedPolicy:
    """The policy of a trainer, as it stands (see Policy)."""

    trainer: GRPOTrainer

    @property
    def seed(self) -> int:
        return self.trainer.args.seed

    def tokenize(self, prompts: Sequence[Any]) -> Sequence[Sequence[int]]:
        prompt_ids: list[list[int]] = self.trainer._tokenize_prompts(list(prompts))[0]
        return prompt_ids

    def sampling(self, *, greedy: bool) -> Sampling:
        return self.trainer.sampling(greedy=greedy)

    def sample(self, groups: Sequence[LocalGroup], receive: Receive) -> list[Completion]:
        return self.trainer.sample(groups, receive)


def _sample(
    trainer: GRPOTrainer, evaluation: OpenEvaluation, reward: CodeReward, tasks: Sequence[Task], n: int, kind: str
) -> dict[str, list[Judged]]:
    """`n` completions of each of this rank's tasks, judged. Collective."""
    args = trainer.args
    most = args.per_device_train_batch_size * int(args.steps_per_generation or 1)
    found: dict[str, list[Judged]] = {}
    for _, batch in sample_and_judge(_TrainedPolicy(trainer), evaluation, reward, tasks, n, kind, most=most):
        for task, judged in zip(batch.tasks, batch.judged, strict=True):
            found.setdefault(task.id, []).append(judged)
    return found


def _results(
    tasks: Sequence[Task], greedy: Mapping[str, Sequence[Judged]], sampled: Mapping[str, Sequence[Judged]]
) -> list[TaskResult]:
    """Of this rank's tasks."""
    return [
        TaskResult(
            task.id,
            task.family,
            prompt=asked_text(task),
            greedy=float(greedy[task.id][0].passed),
            sampled=sum(each.passed for each in sampled[task.id]) / len(sampled[task.id]),
            completion=greedy[task.id][0].text,
        )
        for task in tasks
        if task.id in greedy
    ]
