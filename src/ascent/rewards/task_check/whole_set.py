"""A whole set of tasks, each checked, and compared with the others."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

from ascent.rewards.task_check.one_task import check_task
from ascent.rewards.task_check.programs import Bench
from ascent.rewards.task_check.slightly_wrong import CheckSettings
from ascent.sandbox import Sandbox
from ascent.sandbox.types import Level
from ascent.tasks.checking.duplicates import duplicates
from ascent.tasks.checking.findings import Finding, TaskCheck, in_order
from ascent.tasks.checking.report import TaskSetReport
from ascent.tasks.loading import load_split, load_tasks
from ascent.types import Task


def check_source(
    source: str,
    *,
    held_out: float | int | str = 0.2,
    seed: int = 0,
    visible: int = 1,
    limit: int | None = None,
    settings: CheckSettings | None = None,
    slots: int | None = None,
    packages: Sequence[str] = (),
    require: Level = "confined",
    progress: Callable[[int, int], None] = lambda done, total: None,
    everything: bool = False,
) -> TaskSetReport:
    """Check the tasks of a source, split as a run with `held_out` and `seed` would split them.

    `held_out` is a share, a number or another source. At most `limit` tasks are looked at. `progress(done, total)` is
    told of each task. Raises InputError for a source that can't be read, SandboxError where programs can't be confined.
    """
    began = time.monotonic()
    if isinstance(held_out, str):
        loaded, other = (load_tasks(each, visible=visible, seed=seed) for each in (source, held_out))
        train, unseen, rejected = loaded.tasks, other.tasks, (*loaded.rejected, *other.rejected)
    else:
        loaded, train, unseen = load_split(source, held_out, seed, visible=visible)
        rejected = loaded.rejected
    train, unseen = train[:limit], unseen[: None if limit is None else max(0, limit - len(train))]
    with Sandbox(slots, require=require, packages=packages, nice=0) as sandbox:
        bench = Bench(sandbox)
        checks = _check_all((*train, *unseen), bench, settings or CheckSettings(), 2 * sandbox.slots, progress)
        level = sandbox.level
    return TaskSetReport(
        source,
        len(train),
        len(unseen),
        _with(checks, duplicates(train, unseen)),
        bench.count,
        time.monotonic() - began,
        level,
        tuple(map(str, rejected)),
        everything,
    )


def _check_all(
    tasks: Sequence[Task],
    bench: Bench,
    settings: CheckSettings,
    at_once: int,
    progress: Callable[[int, int], None],
) -> list[TaskCheck]:
    """In the order of the tasks. Several at once keep all slots busy."""
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="ascent-task-check")
    try:
        futures = [pool.submit(check_task, task, bench, settings) for task in tasks]
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            progress(done, len(tasks))
        return [future.result() for future in futures]
    finally:
        pool.shutdown(cancel_futures=True)


def _with(checks: Sequence[TaskCheck], findings: Sequence[Finding]) -> tuple[TaskCheck, ...]:
    """The checks with findings about tasks beside each other."""
    more: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        more[finding.task_id].append(finding)
    return tuple(replace(check, findings=in_order((*check.findings, *more[check.task_id]))) for check in checks)
