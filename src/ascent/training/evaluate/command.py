"""`ascent evaluate` from its arguments to its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.models.digests import model_digest
from ascent.models.folder import load_tokenizer, longest_context
from ascent.rollout.platform import engine_kind
from ascent.rollout.prerequisites import check_cpu_engine
from ascent.tasks.digests import tasks_digest
from ascent.tasks.loading import load_split
from ascent.training.evaluate.folder import digest_of, opened_folder
from ascent.training.evaluate.plan import Asked, Plan, identity, make_plan, without_template
from ascent.training.evaluate.results import EvaluateReport, PolicyResult, counted, numbered
from ascent.training.evaluate.sampling import Asking, Say, fill, rows_of, say
from ascent.training.evaluate.target import Target, find_target
from ascent.training.policy_tasks import prompts_open_thought, run_tasks
from ascent.types import Task


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
        say(f"note: {text}")

    ours = _evaluate_one(target, plan, asked.out, note)
    theirs = None
    if other is not None:
        same = other.config is not None and other.config.model == (target.config.model if target.config else None)
        theirs = _evaluate_one(other, plan if same else without_template(plan), None, note)
    return EvaluateReport(ours, theirs, plan.k, _about(plan, len(ours.tasks)), _told(plan), tuple(notes))


def _evaluate_one(target: Target, plan: Plan, out: Path | None, note: Say) -> PolicyResult:
    asking = _asking(target, plan, note)
    tasks = asking.tasks
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
            fill(folder, target, plan, asking, note)
        else:
            say(f"{path}: evaluated already; nothing is sampled again")
        counts, unjudged = counted(rows_of(folder), [task.id for task in tasks])
    families = {task.id: task.family for task in tasks}
    result = PolicyResult(target.name, target.given, target.step, path, counts, families, unjudged)
    return replace(result, tasks={i: c for i, c in counts.items() if c.samples or c.greedy is not None})


def _asking(target: Target, plan: Plan, note: Say) -> Asking:
    """The tasks as this policy reads them."""
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
    tasks = (found.held_out if plan.held_out else found.train)[: plan.limit]
    if not tasks:
        raise InputError("the run holds out no task that fits", "Name tasks with --tasks.")
    _note_seen(target.config, tasks, plan, note)
    opens_thought = prompts_open_thought(tasks, tokenizer, plan.template)
    return Asking(tasks, found.longest_prompt, context, tokenizer, opens_thought)


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


def _about(plan: Plan, tasks: int) -> str:
    greedy = "1 greedy completion and " if plan.greedy else ""
    asked = numbered(tasks, "held-out task" if plan.held_out else "task")
    return (
        f"{asked} of {plan.tasks.train}: {greedy}{numbered(plan.samples, 'sample')} of each at temperature "
        f"{plan.sampling['temperature']:g}, at most {plan.max_tokens} tokens, seed {plan.seed}"
    )


def _told(plan: Plan) -> dict[str, Any]:
    return {"tasks": plan.tasks.train, "held_out": plan.held_out, "k": list(plan.k), **identity(plan)}
