"""`builtin:starter` as a model folder: built at its first use, then found in the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ascent.errors import InputError
from ascent.models.starter.noisy_solutions import HELD_OUT_SHARE, Noise, examples, training_tasks
from ascent.models.starter.warm_start import Schedule
from ascent.tasks.builtin import BuiltinTask
from ascent.tasks.loading import load_split

STARTER = "builtin:starter"
_FORMAT = 1  # raise it when the same recipe gives another policy


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides what the starter is, beside the built-in tasks themselves."""

    seed: int = 0
    noise: Noise = field(default_factory=Noise)
    schedule: Schedule = field(default_factory=Schedule)


def is_starter(path: str) -> bool:
    """Whether a `model.path` names the starter."""
    return path == STARTER or path.startswith(f"{STARTER}:")


def recipe_of(path: str) -> Recipe:
    """The recipe that `builtin:starter` or `builtin:starter:SEED` names. Raises InputError for anything else."""
    seed = path.removeprefix(STARTER).removeprefix(":") or "0"
    if not is_starter(path) or not seed.isdecimal():
        raise InputError(f"model.path={path!r}: no such built-in model", f"Write {STARTER} or {STARTER}:SEED.")
    return Recipe(int(seed))


def starter_folder(recipe: Recipe, cache: Path) -> Path:
    """The starter's model folder under `cache`, built if it isn't there. Rebuilt when the recipe or the tasks change.

    Several processes may ask at once: each builds, the first to finish gives the folder its name.
    """
    tasks = training_tasks(recipe.seed)
    folder = cache / f"starter-{_version(recipe, tasks)}"
    if not (folder / "config.json").is_file():
        beside = cache / f".{folder.name}.{os.getpid()}.tmp"
        build(recipe, tasks, beside)
        try:
            beside.rename(folder)
        except OSError:  # another process was first
            shutil.rmtree(beside)
            if not (folder / "config.json").is_file():
                raise
    return folder


def build(recipe: Recipe, tasks: tuple[BuiltinTask, ...], folder: Path) -> None:
    """Train the starter and write it into `folder`. Progress goes to standard error."""
    from ascent.models.starter.network import new_network, new_tokenizer
    from ascent.models.starter.warm_start import warm_start

    _say(f"building the starter policy: {recipe.schedule.steps} steps of supervised training on noisy solutions (once)")
    started = time.monotonic()
    tokenizer = new_tokenizer(text for task in tasks for text in _texts(task))
    network = new_network(tokenizer, recipe.seed)
    noisy = examples(tasks, recipe.noise, recipe.seed)
    warm_start(network, tokenizer, noisy, recipe.schedule, told=_tell_progress)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _say(f"built the starter policy in {time.monotonic() - started:.0f} s")


def check_unseen(path: str, train: str, held_out: float | int | str, seed: int) -> None:
    """Refuse a run whose held-out tasks the starter has seen in its warm start.

    Raises:
        InputError: `train` names built-in tasks, and `held_out` and `seed` give another split than the starter's.
    """
    is_split = (train == "builtin" or train.startswith("builtin:")) and train != "builtin:instruct"
    if not is_starter(path) or not is_split or isinstance(held_out, str) or held_out == 0:
        return
    own = recipe_of(path).seed
    if seed != own:
        raise InputError(
            f"tasks.seed={seed}, but {path} was warmed up on the training half of tasks.seed={own}: "
            "it has seen solutions of tasks that this run holds out",
            f"Set model.path={STARTER}:{seed}, or tasks.seed={own}.",
        )
    if not _left_out_of_warm_start(train, held_out, seed):
        raise InputError(
            f"tasks.held_out={held_out}, but the starter's warm start left out {HELD_OUT_SHARE} of the built-in tasks",
            f"Set tasks.held_out to {HELD_OUT_SHARE} or less, or to a smaller number of tasks.",
        )


def _left_out_of_warm_start(train: str, held_out: float | int, seed: int) -> bool:
    if not isinstance(held_out, int):
        return held_out <= HELD_OUT_SHARE
    seen = {task.task.id for task in training_tasks(seed)}
    return not any(task.id in seen for task in load_split(train, held_out, seed)[2])


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _tell_progress(step: int, loss: float) -> None:
    if step == 1 or step % 50 == 0:
        _say(f"  step {step}  loss {loss:.3f}")


def _texts(task: BuiltinTask) -> tuple[str, ...]:
    return tuple(f"{task.task.prompt}{completion}" for completion in (task.solution, *task.wrong_solutions))


def _version(recipe: Recipe, tasks: tuple[BuiltinTask, ...]) -> str:
    """A name for what the recipe gives with these tasks: seed, and a hash of everything else that decides it."""
    content = json.dumps([_FORMAT, asdict(recipe), [_texts(task) for task in tasks]])
    return f"{recipe.seed}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
