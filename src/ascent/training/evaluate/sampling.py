"""Fills the folder of an evaluation: samples and judges what no earlier start has."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent import devices
from ascent.alarms.markers import markers
from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.rewards.code import CodeReward
from ascent.sandbox import Sandbox
from ascent.tracking import run_directory
from ascent.tracking.task_file import read_tasks, record_tasks
from ascent.training.evaluate.folder import NAME, NUMBER, EvaluationFolder
from ascent.training.evaluate.plan import Plan
from ascent.training.evaluate.policy import EnginePolicy, opened_policy
from ascent.training.evaluate.results import PolicyResult, TaskCounts, counted, is_greedy
from ascent.training.evaluate.target import Target
from ascent.training.evaluation import Evaluation, TaskResult, asked_text, save_evaluations
from ascent.training.judging import judgeable, open_local, sample_and_judge
from ascent.training.records.evaluations import OpenEvaluation
from ascent.training.records.program_notes import ProgramNotes
from ascent.training.records.recorder import EvaluationRecord
from ascent.training.step.ranks import Ranks
from ascent.types import EngineStats, Task

Say = Callable[[str], None]
_EVERY = 5.0  # seconds between two words of progress


@dataclass(frozen=True, slots=True)
class Asking:
    """What a target is asked, as it reads it. Lengths in tokens."""

    tasks: tuple[Task, ...]
    longest_prompt: int
    context: int
    tokenizer: Any
    opens_thought: bool


def fill(folder: EvaluationFolder, target: Target, plan: Plan, asked: Asking, note: Say) -> None:
    """Sample and judge what is not yet there, then finish the folder. `note` is told what was left out. Raises
    InputError."""
    run_directory.write_text(folder.run.config, _config(target, plan).to_yaml())
    with open_local(plan.sandbox) as sandbox:
        tasks, refused = judgeable(asked.tasks, sandbox)
        if refused:
            note(f"{len(refused)} tasks left out, because their tests can't be run (first: {refused[0]})")
        if not tasks:
            raise InputError(f"no task is left whose tests can be run; {refused[0]}")
        _record_tasks(folder, tasks)
        kinds = ([("greedy", 1)] if plan.greedy else []) + [("sampled", plan.samples)]
        say(f"{target.name}: {len(tasks)} tasks, {sum(n for _, n in kinds)} completions of each; {devices.name()}")
        engine = _sample_kinds(folder, target, plan, asked, sandbox, tasks, kinds)
    folder.finish(_summary(folder, target, plan, tasks, engine).to_json())


def _summary(
    folder: EvaluationFolder, target: Target, plan: Plan, tasks: Sequence[Task], engine: EngineStats | None
) -> EvaluationRecord:
    """What stands in the evaluation's line. Writes `evaluation.json` where there are greedy completions."""
    rows = rows_of(folder, "completion")
    counts, _ = counted(rows, [task.id for task in tasks])
    if plan.greedy:
        save_evaluations(folder.run, None, Evaluation(tuple(_task_results(tasks, counts, rows)), target.step))
    families = {task.id: task.family for task in tasks}
    result = PolicyResult(target.name, target.given, target.step, folder.run.path, counts, families, 0)
    return EvaluationRecord(
        number=NUMBER,
        name=NAME,
        step=target.step,
        generation=0,
        completions=len(rows),
        seconds=folder.seconds(),
        metrics=_metrics(result, plan.k),
        engine=engine,
        results={task_id: each.to_json() for task_id, each in counts.items()},
    )


def _task_results(
    tasks: Sequence[Task], counts: Mapping[str, TaskCounts], rows: Sequence[Mapping[str, Any]]
) -> Iterator[TaskResult]:
    """As a run keeps them, of the tasks whose greedy completion was judged."""
    texts = {row["task_id"]: row["completion"] for row in rows if is_greedy(row)}
    for task in tasks:
        found = counts[task.id]
        if found.greedy is not None:
            yield TaskResult(task.id, task.family, asked_text(task), float(found.greedy), found.sampled, texts[task.id])


def _metrics(result: PolicyResult, k: Sequence[int]) -> dict[str, float | None]:
    """`greedy` and `sampled` as in a run's own evaluations, and each pass@k."""
    rates = {name: each.mean for name, each in result.rates((1, *k)).items()}
    if "pass@1" in rates:
        rates["sampled"] = rates["pass@1"]
    return dict(rates)


def _sample_kinds(
    folder: EvaluationFolder,
    target: Target,
    plan: Plan,
    asked: Asking,
    sandbox: Sandbox,
    tasks: Sequence[Task],
    kinds: Sequence[tuple[str, int]],
) -> EngineStats | None:
    """Those batches that no earlier start has judged; None where there was none left."""
    left = {
        (kind, n): [
            min(plan.batch, len(tasks) * n - first)
            for number, first in enumerate(range(0, len(tasks) * n, plan.batch))
            if not folder.part(kind, number).is_file()
        ]
        for kind, n in kinds
    }
    total = sum(map(sum, left.values()))
    if folder.whole.is_file() or not total:
        return None
    with (
        _progress(total) as progress,
        opened_policy(
            target,
            asked.tokenizer,
            plan,
            longest_prompt=asked.longest_prompt,
            context=asked.context,
            progress=progress,
        ) as policy,
    ):
        sandbox.keep_off_engines()
        reward = CodeReward(tasks, sandbox=sandbox, prompt_opens_thought=asked.opens_thought)
        notes = ProgramNotes(tasks, reward.audited, markers)
        for (kind, n), sizes in left.items():
            if sizes:
                _sample_kind(policy, folder, reward, notes, tasks, kind, n)
        return policy.engine.stats()


def _sample_kind(
    policy: EnginePolicy,
    folder: EvaluationFolder,
    reward: CodeReward,
    notes: ProgramNotes,
    tasks: Sequence[Task],
    kind: str,
    n: int,
) -> None:
    evaluation = OpenEvaluation(NUMBER, NAME, policy.step, 0, Ranks(0, 1), policy.seed)
    batches = sample_and_judge(
        policy,
        evaluation,
        reward,
        tasks,
        n,
        kind,
        most=policy.plan.batch,
        is_kept=lambda number: folder.part(kind, number).is_file(),
    )
    began = time.monotonic()
    for number, batch in batches:
        records = notes.complete(batch.record.records(folder.run.path.name))
        folder.keep(kind, number, records, time.monotonic() - began)
        evaluation.batches.clear()  # they are kept in the file
        began = time.monotonic()


def rows_of(folder: EvaluationFolder, *more: str) -> list[dict[str, Any]]:
    """Those of all completions that were judged, with the columns that count them and some `more`."""
    import pyarrow.parquet as pq

    columns = ["sample_id", "task_id", "outcomes", "reward", *more]
    rows: list[dict[str, Any]] = []
    for file in folder.files():
        rows += pq.read_table(file, columns=columns).to_pylist()
    return rows


def _record_tasks(folder: EvaluationFolder, tasks: Sequence[Task]) -> None:
    known = [line.task_id for line in read_tasks(folder.run.tasks)]
    if known and folder.files() and known != [task.id for task in tasks]:
        raise InputError(
            f"{folder.run.path}: {len(known)} tasks could be judged when it was begun, {len(tasks)} can be now",
            "Bring back the packages and compilers that were there, or begin anew with another --out.",
        )
    record_tasks(folder.run.tasks, (), tasks, step=0)


def _config(target: Target, plan: Plan) -> RunConfig:
    """What a run would be called with that asks the same."""
    path = str(Path(target.given).resolve()) if Path(target.given).exists() else target.given
    return RunConfig.model_validate(
        {
            "model": {"path": path, "trust_remote_code": plan.trust_remote_code},
            "tasks": plan.tasks.model_dump(mode="json"),
            "sandbox": plan.sandbox.model_dump(mode="json"),
            "rollout": {"engine": plan.engine},
            "tracking": {"eval_samples": plan.samples},
            "trainer": {
                "max_completion_length": plan.max_tokens,
                "seed": plan.seed,
                **{name: value for name, value in plan.sampling.items() if name != "min_p" or value},
            },
        }
    )


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """Says every few seconds how many completions have ended."""
    done, began = 0, time.monotonic()
    told = began

    def progress() -> None:
        nonlocal done, told
        done += 1
        now = time.monotonic()
        if now - told >= _EVERY:
            told = now
            say(f"{done} of {total} completions, {now - began:.0f} s")

    yield progress


def say(text: str) -> None:
    """Tell the user."""
    print(text, file=sys.stderr, flush=True)
