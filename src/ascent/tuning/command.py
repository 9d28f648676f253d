"""`ascent tune`, from what it was given to its result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ascent.errors import InputError
from ascent.memory.cost import cost_of
from ascent.memory.from_config import settings_of
from ascent.rollout.platform import installed_vllm
from ascent.tracking.beginning import locked
from ascent.tuning import asked as asking
from ascent.tuning import workload as workloads
from ascent.tuning.asked import Asked, Configured
from ascent.tuning.engines import ChildEngines
from ascent.tuning.grouping import Grouping, estimates, sizes
from ascent.tuning.ledger import Ledger
from ascent.tuning.probe import Machine, TrialError
from ascent.tuning.progress import TuneProgress
from ascent.tuning.result import Result, result
from ascent.tuning.search import Search
from ascent.tuning.space import Point, Space, space
from ascent.tuning.trial import EngineChild
from ascent.tuning.workload import Workload

_LONGEST_WAIT = 600.0  # seconds for an answer, where the budget is shorter


def tune(what: str, overrides: Sequence[str], *, run: Path | None, budget: float, out: Path | None) -> Result:
    """Find the fastest settings within `budget` seconds, and write them to `out`, where a search that was killed goes
    on. Raises InputError for what can't be measured."""
    asked = asking.asked(what, overrides, run)
    folder = out or Path("tuning") / asked.name
    with _own(folder), TuneProgress(budget) as progress:
        for note in asked.notes:
            progress.say(f"note: {note}")
        try:
            return _tune(asked, budget, folder, progress)
        except KeyboardInterrupt:
            progress.say(f"what was measured is kept in {folder}; the same command goes on")
            raise


def _tune(asked: Asked, budget: float, folder: Path, progress: TuneProgress) -> Result:
    begun = time.monotonic()
    log, kept = folder / "engines.log", folder / "workload.json"
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(EngineChild(log))
        machine = _look(first)
        workload, notes = _workload(asked, machine, kept)
        configured = asking.configured(asked, machine, workload.longest_prompt)
        points = _space(asked, configured, machine)
        ends = workloads.ends(asked.folder, trust_remote_code=asked.config.model.trust_remote_code)
        engines = stack.enter_context(
            ChildEngines(
                configured.settings,
                machine,
                workload,
                workloads.sampling_of(asked.config.trainer, ends),
                bool(asked.config.trainer.get("seeded_sampling")),
                log,
                max(budget, _LONGEST_WAIT),
                started=first,
            )
        )
        built = None
        if not kept.is_file():
            built = points.base
            engines.workload = workload = _sampled(engines, built, workload, progress)
            workload.write(kept)
        progress.say(workload.told())
        ledger = Ledger(folder / "ledger.jsonl", _what(asked, workload, machine, points))
        spent = 0.0 if ledger.tried else time.monotonic() - begun
        search = Search(points, engines, ledger, budget, watch=progress.step, beside=spent, built=built)
        if ledger.tried:
            progress.say(f"going on: {len(ledger.tried)} probes are kept in {folder}, {ledger.spent:.0f} s were spent")
        search.run()
        groupings = _groupings(asked, configured, workload, search, engines)
        found = result(search, workload.told(), groupings, (*notes, *configured.notes))
        found.write(folder)
        progress.say(f"kept in {folder}: tune.yaml, tune.json, ledger.jsonl")
        return found


def _look(child: EngineChild) -> Machine:
    try:
        return child.look()
    except TrialError as error:
        raise InputError(f"vLLM can't be asked what it runs on: {error.text}", "Run: ascent doctor --run.") from error


def _workload(asked: Asked, machine: Machine, kept: Path) -> tuple[Workload, list[str]]:
    """What was measured by before, else what a run sampled, else prompts with the longest lengths, to be sampled."""
    if kept.is_file():
        return workloads.read(kept), []
    memory, _ = settings_of(asked.config, 1, machine.kind)
    groups = max(1, memory.batch.sampled // memory.batch.group)
    if asked.run is None:
        return workloads.of_tasks(asked.config, asked.folder, groups, memory.batch.group, memory.batch.completion)
    workload = workloads.of_run(asked.run, groups)
    notes = []
    if workload.sequences != memory.batch.sampled:
        notes.append(
            f"{asked.run.name} has {workload.sequences} completions to measure by, a generation as configured has "
            f"{memory.batch.sampled}"
        )
    workload.write(kept)
    return workload, notes


def _sampled(engines: ChildEngines, built: Point, workload: Workload, progress: TuneProgress) -> Workload:
    """The workload with the lengths that the policy gives its completions."""
    progress.say("sampling once, for the lengths of completions")
    try:
        engines.open(built)
        found = engines.natural(workload)
    except TrialError as error:
        raise InputError(
            f"the engine as it is configured can't sample the tasks: {error.why}: {error.text}",
            "Does `ascent generate MODEL` sample? With --run RUN lengths are taken from a run instead.",
        ) from error
    return workloads.with_lengths(workload, found.lengths)


def _space(asked: Asked, configured: Configured, machine: Machine) -> Space:
    servers = 0
    if asked.config.rollout.mode == "server" and machine.devices > 1:
        servers = configured.point.replicas * configured.point.tensor_parallel
    return space(
        configured.point,
        machine,
        asking.needs(configured),
        servers=servers,
        fits=asking.fits(configured),
    )


def _what(asked: Asked, workload: Workload, machine: Machine, points: Space) -> dict[str, Any]:
    """What a ledger is of: with another of these, speeds are others."""
    return {
        "model": (asked.folder / "config.json").read_text(encoding="utf-8"),
        "workload": [[group.prompt_ids, group.lengths] for group in workload.groups],
        "machine": [machine.kind, machine.devices, machine.cores, machine.card.name],
        "base": points.base.to_json(),
        "values": {name: list(each) for name, each in points.values.items()},
        "trainer": {name: asked.config.trainer.get(name) for name in ("temperature", "top_p", "top_k", "min_p")},
        "seeded": bool(asked.config.trainer.get("seeded_sampling")),
        "vllm": installed_vllm(),
    }


def _groupings(
    asked: Asked, configured: Configured, workload: Workload, search: Search, engines: ChildEngines
) -> list[Grouping]:
    """Estimates for other group sizes with the best settings, as far as the budget reaches."""
    batch, model, best = configured.memory.batch, asking.model_of(asked), search.known.best()
    if model is None or best is None or batch.budget is None or not batch.shared_prompt:
        return []
    speed = search.known.speed(best)
    others = sizes(workload, batch.group)
    if speed is None or not others:
        return []
    measured = [(workload, workload.tokens / speed)]
    for size in others:
        regrouped = workload.regrouped(size)
        assert regrouped is not None  # as `sizes` has seen
        seconds = search.aside(best, partial(engines.generation, regrouped, best.limits))
        if seconds is None:
            break
        measured.append((regrouped, seconds))
    tokens = batch.budget or batch.micro_batch * batch.length
    return estimates(measured, tokens, cost_of(model), asking.fits_group(configured))


@contextlib.contextmanager
def _own(folder: Path) -> Iterator[None]:
    """The folder, made and held. Raises InputError where that can't be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder}: can't be made: {error.strerror or error}") from error
    with locked(folder) as ours:
        if ours is False:
            raise InputError(f"{folder}: another tuning is writing there", "Give another folder with --out.")
        yield
