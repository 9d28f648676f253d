"""A trial in its own process: the run is prepared as any run, makes a few steps, and is measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ascent import devices
from ascent.config import RunConfig
from ascent.memory.advice import advice
from ascent.memory.measured import PLANNED, compared
from ascent.memory.picture import size
from ascent.memory.plan import Plan
from ascent.tracking.run_directory import RunDirectory
from ascent.training.planning import this_card
from ascent.training.records.out_of_memory import OutOfMemoryError
from ascent.training.records.recorder import StepRecord
from ascent.training.run import Prepared, prepared, showing_progress
from ascent.training.trial import asked
from ascent.training.trial.asked import Trial
from ascent.training.trial.dense import dense_cost
from ascent.training.trial.found import FoundFile, Worst
from ascent.training.trial.steps import TrialSteps
from ascent.training.trial.worst_batch import take_worst_batch

_MENDS = 4  # settings that are told


def try_out(config: RunConfig, run: RunDirectory, notes: Sequence[str]) -> bool:
    """Do what `trial.json` asks; whether it was stopped before. That memory ran out is a result and no error. Raises
    InputError as a run does."""
    trial = asked.read(run)
    file = FoundFile(run, keeps=True)
    try:
        with prepared(config, run, notes=notes) as ready:
            accelerator = ready.trainer.accelerator
            file.keeps = accelerator.is_main_process
            file.take(
                device=devices.name(),
                processes=accelerator.num_processes,
                start_seconds=time.time() - trial.began,
                held_out=len(ready.tasks.held_out),
                kind=devices.kind(),
                memory_mends=_memory_mends(ready.plan),
                fits=_fits(ready.plan),
            )
            return _steps(ready, trial, file)
    except OutOfMemoryError as error:
        file.keeps = True
        worst = file.found.worst
        if worst is not None and worst.state == "trying":
            file.take(worst=replace(worst, state="out of memory", why=error.message))
        else:
            file.take(out_of_memory=str(error))
        if file.found.processes > 1:  # the others wait for this one, until its launcher ends them
            raise
        return False


def _steps(ready: Prepared, trial: Trial, file: FoundFile) -> bool:
    trainer = ready.trainer

    def prepare_worst() -> None:
        prompt, completion = ready.tasks.longest_prompt, int(trainer.args.max_completion_length or 1)
        ready.say(f"trying the worst batch: every sequence {prompt} + {completion} tokens long")
        rows = take_worst_batch(trainer, prompt, completion)
        file.take(worst=Worst(rows, prompt, completion))
        ready.recorder.watchers[:] = [lambda record: _take_worst(record, ready.plan, file)]  # it is no step of the run

    steps = TrialSteps(trial, trainer.agreement.ranks, file, prepare_worst)
    trainer.add_callback(steps)
    trainer.after_step = steps.after_step
    with showing_progress(trainer, ready.recorder):
        trainer.train()
    if trial.dense and not steps.asked_to_stop:
        file.take(dense=dense_cost(trainer, *_mean_lengths(trainer)))
    return steps.asked_to_stop


def _memory_mends(made: Plan | None) -> list[str]:
    changes = [] if made is None else advice(made, PLANNED["update"])
    return [f"{change.setting} (gains {size(change.gains)}): {change.costs}" for change in changes[:_MENDS]]


def _fits(made: Plan | None) -> list[str]:
    """Settings that save time, with which the run fits in memory as well as it is planned."""
    if made is None:
        return []
    trained = made.settings.trained
    faster = {
        "trainer.gradient_checkpointing=false": replace(trained, checkpointing=False),
        "memory.offload=none": replace(trained, offload="none"),
    }
    plans = {setting: made.changed(replace(made.settings, trained=other)) for setting, other in faster.items()}
    return [setting for setting, plan in plans.items() if plan.verdict == "fits"]


def _take_worst(record: StepRecord, made: Plan | None, file: FoundFile) -> None:
    """The step on the worst batch has ended: what it took."""
    worst = file.found.worst
    assert worst is not None
    phases = record.device.get("phases", {})
    planned = [] if made is None else compared(made, {"update": phases["update"]})
    use = devices.use()
    on_cpu = devices.kind() == "cpu"
    file.take(
        worst=replace(
            worst,
            state="done",
            peak=phases["update"]["allocated"],
            planned=planned[0]["planned"] if planned else 0,
            in_use=record.device["peak_bytes"] if on_cpu else use.used_bytes,
            usable=this_card().usable + (use.used_bytes if on_cpu else 0),
            seconds=record.times.update,
        )
    )


def _mean_lengths(trainer: Any) -> tuple[float, float]:
    """Tokens of prompt and completion of a mean row of the last generation."""
    slices = trainer._buffered_inputs
    rows = sum(len(each["prompt_mask"]) for each in slices)
    prompt, completion = (
        float(sum(each[f"{name}_mask"].sum() for each in slices)) for name in ("prompt", "completion")
    )
    return prompt / rows, completion / rows
