"""`ascent evaluate` from its arguments to its report."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ascent import devices
from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.models.digests import model_digest
from ascent.models.folder import load_tokenizer, longest_context
from ascent.rewards.code import CodeReward
from ascent.rollout.platform import engine_kind
from ascent.rollout.prerequisites import check_cpu_engine
from ascent.tasks.digests import tasks_digest
from ascent.tasks.loading import load_split
from ascent.tracking import run_directory
from ascent.tracking.task_file import record_tasks
from ascent.training.evaluate.folder import NAME, NUMBER, EvaluationFolder, digest_of, opened_folder
from ascent.training.evaluate.plan import Asked, Plan, identity, make_plan, without_template
from ascent.training.evaluate.policy import EnginePolicy, opened_policy
from ascent.training.evaluate.results import EvaluateReport, PolicyResult, TaskCounts, counted, is_greedy
from ascent.training.evaluate.target import Target, find_target
from ascent.training.evaluation import Evaluation, TaskResult, asked_text, save_evaluations
from ascent.training.judging import judgeable, open_sandbox, sample_and_judge
from ascent.training.policy_tasks import prompts_open_thought, run_tasks
from ascent.training.records.evaluations import OpenEvaluation
from ascent.training.records.recorder import EvaluationRecord
from ascent.training.step.ranks import Ranks
from ascent.types import EngineStats, Task

Say = Callable[[str], None]
_EVERY = 5.0  # seconds between two words of progress


def evaluate(asked: Asked) -> EvaluateReport:
    """Evaluate a policy, and the one that it is compared with. What an earlier start has judged isn't judged again.
    Raises InputError."""
    target = find_target(asked.model)
    other = None if asked.against is None else find_target(asked.against)
    trust = asked.trust_remote_code or (target.config is not None and target.config.model.trust_remote_code)
    plan = make_plan(asked, target.config, context=longest_context(target.folder, trust_remote_code=trust))
    if plan.engine == "vllm" and engine_kind() == "cpu":
        check_cpu_engine()
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        _say(f"note: {text}")

    ours = _evaluate_one(target, plan, asked.out, note)
    theirs = None
    if other is not None:
        same = other.config is not None and other.config.model == (target.config.model if target.config else None)
        theirs = _evaluate_one(other, plan if same else without_template(plan), None, note)
    return EvaluateReport(ours, theirs, plan.k, _about(plan, len(ours.tasks)), _told(plan), tuple(notes))


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a target is asked."""

    tasks: tuple[Task, ...]
    longest_prompt: int
    context: int
    tokenizer: Any
    opens_thought: bool


def _evaluate_one(target: Target, plan: Plan, out: Path | None, note: Say) -> PolicyResult:
    tokenizer = load_tokenizer(target.folder, trust_remote_code=plan.trust_remote_code)
    context = longest_context(target.folder, trust_remote_code=plan.trust_remote_code)
    if plan.max_tokens >= context:
        raise InputError(
            f"{target.given}: completions of {plan.max_tokens} tokens don't fit into its context of {context}",
            "Lower --max-tokens.",
        )
    found = run_tasks(plan.tasks, tokenizer, context=context, completion=plan.max_tokens, shown=None)
    for each in found.notes:
        note(each)
    tasks = found.held_out if plan.held_out else found.train
    if not tasks:
        raise InputError("the run holds out no task that fits", "Name tasks with --tasks.")
    tasks = tasks[: plan.limit]
    _note_seen(target.config, tasks, plan, note)
    opens_thought = prompts_open_thought(tasks, tokenizer, plan.template)
    prepared = _Prepared(tasks, found.longest_prompt, context, tokenizer, opens_thought)
    settings = {
        "schema": "ascent.evaluate.settings/1",
        "model": target.given if not Path(target.given).exists() else str(Path(target.given).resolve()),
        "weights": model_digest(target.folder),
        "step": target.step,
        "tasks": {"source": plan.tasks.train, "count": len(tasks), "digest": tasks_digest(tasks)},
        **identity(plan),
    }
    stem = Path(plan.tasks.train).name.split(".", 1)[0].replace(":", "-")
    path = out or Path("runs") / f"evaluate-{target.name}-{stem}-{digest_of(settings)}"
    with opened_folder(path, settings, target.step) as folder:
        if folder.line is None:
            _sample_all(target, plan, prepared, folder, note)
        else:
            _say(f"{path}: evaluated already; nothing is sampled again")
        counts, unjudged = counted(_rows(folder), [task.id for task in tasks])
    families = {task.id: task.family for task in tasks}
    result = PolicyResult(target.name, target.given, target.step, path, counts, families, unjudged)
    return replace(result, tasks={i: c for i, c in counts.items() if c.samples or c.greedy is not None})


def _sample_all(target: Target, plan: Plan, prepared: _Prepared, folder: EvaluationFolder, note: Say) -> None:
    """Sample and judge what is not yet there, then finish the folder."""
    run_directory.write_text(folder.run.config, _config(target, plan).to_yaml())
    with open_sandbox(plan.sandbox) as sandbox:
        tasks, refused = judgeable(prepared.tasks, sandbox)
        if refused:
            note(f"{len(refused)} tasks left out, because their tests can't be run (first: {refused[0]})")
        if not tasks:
            raise InputError(f"no task is left whose tests can be run; {refused[0]}")
        record_tasks(folder.run.tasks, (), tasks, step=0)
        reward = CodeReward(tasks, sandbox=sandbox, prompt_opens_thought=prepared.opens_thought)
        kinds = ([("greedy", 1)] if plan.greedy else []) + [("sampled", plan.samples)]
        _say(f"{target.name}: {len(tasks)} tasks, {sum(n for _, n in kinds)} completions of each; {devices.name()}")
        engine = _sample_kinds(target, plan, prepared, folder, reward, tasks, kinds)
    rows = _rows(folder, "completion")
    counts, _ = counted(rows, [task.id for task in tasks])
    if plan.greedy:
        save_evaluations(folder.run, None, Evaluation(tuple(_task_results(tasks, counts, rows)), target.step))
    result = PolicyResult(
        target.name, target.given, target.step, folder.run.path, counts, {task.id: task.family for task in tasks}, 0
    )
    record = EvaluationRecord(
        number=NUMBER,
        name=NAME,
        step=target.step,
        generation=0,
        completions=len(tasks) * sum(n for _, n in kinds),
        seconds=folder.seconds(),
        metrics=_metrics(result, plan.k),
        engine=engine,
        results={
            task_id: {
                **({} if each.greedy is None else {"greedy": float(each.greedy)}),
                "sampled": each.sampled,
                "samples": each.samples,
            }
            for task_id, each in counts.items()
        },
    )
    folder.finish(record.to_json())


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
    target: Target,
    plan: Plan,
    prepared: _Prepared,
    folder: EvaluationFolder,
    reward: CodeReward,
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
            prepared.tokenizer,
            plan,
            longest_prompt=prepared.longest_prompt,
            context=prepared.context,
            progress=progress,
        ) as policy,
    ):
        for (kind, n), sizes in left.items():
            if sizes:
                _sample_kind(policy, folder, reward, tasks, kind, n)
        return policy.engine.stats()


def _sample_kind(
    policy: EnginePolicy, folder: EvaluationFolder, reward: CodeReward, tasks: Sequence[Task], kind: str, n: int
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
        folder.keep(kind, number, batch.record.records(folder.run.path.name), time.monotonic() - began)
        evaluation.batches.clear()  # they are kept in the file
        began = time.monotonic()


def _rows(folder: EvaluationFolder, *more: str) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    columns = ["sample_id", "task_id", "outcomes", "reward", *more]
    rows: list[dict[str, Any]] = []
    for file in folder.files():
        rows += pq.read_table(file, columns=columns).to_pylist()
    return rows


def _note_seen(config: RunConfig | None, tasks: Sequence[Task], plan: Plan, note: Say) -> None:
    """Tell which of the tasks the run was trained on: their rates say little about others."""
    if config is None or plan.held_out:
        return
    section = config.tasks
    try:
        held_out = 0.0 if isinstance(section.held_out, str) else section.held_out
        _, train, _ = load_split(section.train, held_out, section.seed, strict=section.strict)
    except InputError as error:
        note(f"whether the run was trained on some of these tasks can't be told: {error.message}")
        return
    seen = {task.id for task in train} & {task.id for task in tasks}
    if seen:
        note(f"the run was trained on {len(seen)} of these {len(tasks)} tasks (such as {min(seen)})")


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


def _about(plan: Plan, tasks: int) -> str:
    greedy = "1 greedy completion and " if plan.greedy else ""
    return (
        f"{tasks} {'held-out ' if plan.held_out else ''}tasks of {plan.tasks.train}: {greedy}{plan.samples} samples of "
        f"each at temperature {plan.sampling['temperature']:g}, at most {plan.max_tokens} tokens, seed {plan.seed}"
    )


def _told(plan: Plan) -> dict[str, Any]:
    return {"tasks": plan.tasks.train, "held_out": plan.held_out, "k": list(plan.k), **identity(plan)}


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
            _say(f"{done} of {total} completions, {now - began:.0f} s")

    yield progress


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
