"""Several runs of one engine: each with a process and a start of its own, so that they differ as two days differ."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import TypeAdapter

from ascent.bench.regress.child import JOB, REFUSED, RUN
from ascent.bench.regress.engines import opened
from ascent.bench.regress.measure import Job, Run, measure
from ascent.errors import InputError
from ascent.host.children import run_child

Tell = Callable[[str], None]
Measure = Callable[[Job], Run]
_SECONDS = 3 * 3600.0  # for one run, its start included


def measure_in_child(job: Job) -> Run:
    """One run in a process of its own. Raises InputError when it refuses, or ends without a result."""
    with tempfile.TemporaryDirectory(prefix="ascent-regress-") as name:
        folder = Path(name)
        (folder / JOB).write_text(json.dumps({**asdict(job), "folder": str(job.folder)}), encoding="utf-8")
        ended = run_child(["ascent.bench.regress.child", name], folder / "log", _SECONDS, on_cpu=False)
        if (folder / REFUSED).is_file():
            refused = json.loads((folder / REFUSED).read_text(encoding="utf-8"))
            raise InputError(refused["message"], refused["mend"])
        if ended.code != 0 or not (folder / RUN).is_file():
            how = f"ended with code {ended.code}" if ended.code is not None else f"was ended after {_SECONDS:g} s"
            raise InputError(f"the engine's process {how}; its last words:\n{ended.last_lines}")
        return TypeAdapter(Run).validate_json((folder / RUN).read_bytes())


def several_runs(job: Job, count: int, tell: Tell, measure_one: Measure = measure_in_child) -> list[Run]:
    """`count` runs; where no references are given, all have those of the first. Raises InputError when one can't be
    made."""
    runs: list[Run] = []
    if job.choice.kind == "service":
        with opened(job.choice, job.folder) as subject:
            for number in range(count):
                tell(f"run {number + 1} of {count}")
                questions = with_references(job, runs).questions
                runs.append(measure(subject, questions, job.asked, number))
        return runs
    for number in range(count):
        tell(f"run {number + 1} of {count}: the engine starts")
        runs.append(measure_one(replace(with_references(job, runs), number=number)))
    return runs


def with_references(job: Job, runs: Sequence[Run]) -> Job:
    """The job with the references of the first run, where there is one."""
    if not runs:
        return job
    found = zip(job.questions, runs[0].prompts, strict=True)
    return replace(job, questions=tuple(replace(question, reference=run.reference) for question, run in found))
