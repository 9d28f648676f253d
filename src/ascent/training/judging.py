"""Completions of tasks, sampled and judged by all tests: the one way for a run's own evaluations and for
`ascent evaluate`. And which tasks can be judged at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from ascent.config.sections import ClusterSection, SandboxSection
from ascent.errors import InputError
from ascent.rewards.code import CodeReward
from ascent.sandbox import Sandbox
from ascent.sandbox.errors import SandboxError
from ascent.sandbox.judges import Judges
from ascent.sandbox.types import Verdict
from ascent.tables import JUDGES, load
from ascent.training.records.batch import BatchRecord
from ascent.training.records.evaluations import OpenEvaluation
from ascent.training.step.groups import LocalGroup, group_requests
from ascent.types import Completion, Sampling, Score, Task

# what is done with a completion as it ends: its place in the batch, the row of its prompt, its text
Receive = Callable[[int, Mapping[str, Any], str], None]


class Policy(Protocol):
    """What is evaluated: it reads prompts and samples completions."""

    @property
    def seed(self) -> int:
        """What the seeds of its completions are made of."""
        ...

    def tokenize(self, prompts: Sequence[Any]) -> Sequence[Sequence[int]]:
        """The token ids of prompts, text or messages."""
        ...

    def sampling(self, *, greedy: bool) -> Sampling:
        """How completions are sampled."""
        ...

    def sample(self, groups: Sequence[LocalGroup], receive: Receive) -> list[Completion]:
        """Sample all groups, in the order of their places; `receive` is told of each completion as it ends."""
        ...


@dataclass(frozen=True, slots=True)
class Judged:
    """A completion's text and the score of its program."""

    text: str
    score: Score

    @property
    def passed(self) -> bool:
        """Whether it was judged and passes all tests."""
        verdict = self.score.verdict
        return verdict is not None and verdict.infrastructure_error is None and verdict.all_passed


@dataclass(frozen=True, slots=True)
class JudgedBatch:
    """The completions that were sampled together, in order: whose they are, what they earned, and their record."""

    tasks: Sequence[Task]
    judged: Sequence[Judged]
    record: BatchRecord


def sample_and_judge(
    policy: Policy,
    evaluation: OpenEvaluation,
    reward: CodeReward,
    tasks: Sequence[Task],
    n: int,
    kind: str,
    *,
    most: int,
    is_kept: Callable[[int], bool] = lambda number: False,
) -> Iterator[tuple[int, JudgedBatch]]:
    """`n` completions ("sampled", or one that is "greedy") of each of this rank's tasks, in batches of at most `most`,
    each with its number.

    Batches for which `is_kept(number)` holds are left out; the others are sampled with the seeds that they would have
    anyway. Collective: every rank has as many batches.
    """
    ranks = evaluation.ranks
    shares = [len(tasks) * rank // ranks.count for rank in range(ranks.count + 1)]
    largest = max(end - start for start, end in itertools.pairwise(shares))
    first, end = shares[ranks.rank] * n, shares[ranks.rank + 1] * n
    places = range(first, end)  # of this rank's completions among all; n in a row are of one task
    for number in range(-(-largest * n // most)):
        here = places[number * most : (number + 1) * most]
        record = evaluation.batch([{"task_id": tasks[place // n].id} for place in here], kind)
        if is_kept(number):
            evaluation.batches.pop()
            continue
        yield number, _judge_batch(policy, record, reward, [tasks[place // n] for place in here], n, kind, here)


def _judge_batch(
    policy: Policy, record: BatchRecord, reward: CodeReward, tasks: Sequence[Task], n: int, kind: str, places: range
) -> JudgedBatch:
    greedy = kind == "greedy"
    record.prompts = [_as_trl_prompt(task) for task in tasks]
    if tasks:
        record.groups = group_requests(
            policy.tokenize(record.prompts),
            n,
            policy.sampling(greedy=greedy),
            label=record.label,
            draws=record.draws,
            first=places[0],
            seed=None if greedy else policy.seed,
            rows=record.rows,
        )
    texts: dict[int, str] = {}
    futures: dict[int, Future[Verdict]] = {}

    def judge(place: int, row: Mapping[str, Any], text: str) -> None:
        texts[place] = text
        futures[place] = reward.evaluate(row["task_id"], text)

    record.completions = policy.sample(record.groups, judge)
    record.texts = [texts[place] for place in range(len(tasks))]
    record.scores = [
        reward.score(futures[place].result(), reward.program(task.id, texts[place]), len(task.visible_tests))
        for place, task in enumerate(tasks)
    ]
    record.totals = [score.total for score in record.scores]
    record.rewards = [{reward.__name__: total} for total in record.totals]
    record.advantages = [None] * len(tasks)
    judged = [Judged(text, score) for text, score in zip(record.texts, record.scores, strict=True)]
    return JudgedBatch(tasks, judged, record)


def open_judges(settings: SandboxSection, cluster: ClusterSection) -> Judges:
    """What judges the programs of a run: this machine's sandbox, or the judges of all nodes of its cluster. Raises
    InputError where a machine can't give what the settings ask for."""
    if cluster.address is None:
        return open_local(settings)
    judges: Judges = load(JUDGES, "ray")(settings, cluster)
    return judges


def open_local(settings: SandboxSection) -> Sandbox:
    """This machine's sandbox. Raises InputError where it can't give what the settings ask for."""
    try:
        return Sandbox(
            slots=settings.slots,
            limits=settings.limits(),
            require=settings.require,
            packages=settings.packages,
            allow_in_process=settings.allow_in_process,
        )
    except SandboxError as error:
        raise InputError(f"sandbox: {error}") from error


def judgeable(tasks: Iterable[Task], sandbox: Judges) -> tuple[tuple[Task, ...], tuple[str, ...]]:
    """The tasks whose tests the sandbox can run, and why it can't run those of the others."""
    kept: list[Task] = []
    refused: list[str] = []
    for task in tasks:
        try:
            sandbox.check(task.language, task.tests, task.prelude)
        except SandboxError as error:
            refused.append(f"{task.id}: {error}")
        else:
            kept.append(task)
    return tuple(kept), tuple(refused)


def _as_trl_prompt(task: Task) -> Any:
    return task.prompt if isinstance(task.prompt, str) else list(task.prompt)
