"""Held-out evaluation: greedy and sampled completions of tasks never trained on, judged by all their tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from accelerate.utils import gather_object

from ascent.errors import InputError
from ascent.rewards.code import CodeReward
from ascent.sandbox.types import Verdict
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunDirectory
from ascent.training.records.batch import BatchRecord
from ascent.training.step.groups import group_requests
from ascent.types import Sampling, Task

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
    """The results of all tasks, in order."""

    results: tuple[TaskResult, ...]

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
        return {name: Evaluation(tuple(r for r in self.results if r.family == name)) for name in names}


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
        return None if stored is None else Evaluation(tuple(TaskResult(**row) for row in stored["results"]))
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{run.evaluation} is not what a run writes: {type(error).__name__}: {error}") from error


def evaluate(
    trainer: GRPOTrainer, reward: CodeReward, tasks: Sequence[Task], *, samples: int, generation: int, seed: int
) -> Evaluation:
    """Sample each task once greedily and `samples` times at the training temperature, and judge all completions.

    Collective: every process takes its share of the tasks, all get the whole result. Seeds don't depend on the
    weights, so two evaluations of a run differ by the policy alone. Completions are recorded as evaluation rollouts.
    """
    trainer.sync_engine()
    rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
    mine = list(tasks[rank::world])
    results: list[TaskResult] = []
    if mine:
        greedy = _sample(trainer, reward, mine, 1, trainer.sampling(greedy=True), None, generation, "greedy")
        sampled = _sample(trainer, reward, mine, samples, trainer.sampling(), seed, generation, "sampled")
        trainer.record_evaluation([greedy, sampled], generation)
        for place, task in enumerate(mine):
            several = sampled.scores[place * samples : (place + 1) * samples]
            results.append(
                TaskResult(
                    task.id,
                    task.family,
                    prompt=task.prompt if isinstance(task.prompt, str) else str(task.prompt[-1]["content"]),
                    greedy=float(_passed(greedy.scores[place].verdict)),
                    sampled=sum(_passed(score.verdict) for score in several) / samples,
                    completion=str(greedy.texts[place]),
                )
            )
    else:  # takes part in what the others do to sample
        trainer.sample([])
        trainer.sample([])
    gathered: list[TaskResult] = gather_object(results)
    order = {task.id: place for place, task in enumerate(tasks)}
    return Evaluation(tuple(sorted(gathered, key=lambda result: order[result.task_id])))


def _sample(
    trainer: GRPOTrainer,
    reward: CodeReward,
    tasks: Sequence[Task],
    n: int,
    sampling: Sampling,
    seed: int | None,
    generation: int,
    label: str,
) -> BatchRecord:
    rows = [{"task_id": task.id} for task in tasks for _ in range(n)]
    prompts: list[Any] = [_as_trl_prompt(task) for task in tasks for _ in range(n)]
    rank = trainer.accelerator.process_index
    batch = BatchRecord(rows, f"{label}-{generation}", generation, trainer.state.global_step, rank)
    prompt_ids, _, _ = trainer._tokenize_prompts(prompts)
    batch.groups = group_requests(prompt_ids, n, sampling, label=f"{batch.label}-{rank}", seed=seed, rows=rows)
    texts: dict[int, str] = {}
    futures: dict[int, Future[Verdict]] = {}

    def judge(place: int, row: Mapping[str, Any], text: str) -> None:
        texts[place] = text
        futures[place] = reward.evaluate(row["task_id"], text)

    batch.completions = trainer.sample(batch.groups, judge)
    batch.prompts, batch.texts = prompts, [texts[place] for place in range(len(rows))]
    batch.scores = [
        reward.score(futures[place].result(), reward.program(rows[place]["task_id"], texts[place]))
        for place in range(len(rows))
    ]
    batch.totals = [score.total for score in batch.scores]
    batch.rewards = [{reward.__name__: total} for total in batch.totals]
    batch.advantages = [None] * len(rows)
    return batch


def _as_trl_prompt(task: Task) -> Any:
    return task.prompt if isinstance(task.prompt, str) else list(task.prompt)


def _passed(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.infrastructure_error is None and verdict.all_passed
