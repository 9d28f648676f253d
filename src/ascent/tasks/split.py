"""Training and held-out tasks: chosen by a hash of seed and task id, so that neither the order of the tasks
nor new tasks beside them move a task from one half to the other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ascent.errors import InputError
from ascent.types import Task


def split_tasks(tasks: Sequence[Task], held_out: float, seed: int) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """(train, held-out), both in the order of `tasks`.

    Args:
        tasks: tasks with distinct ids.
        held_out: a float in [0, 1) holds out that share (each task by its own hash, so the count is about,
            not exactly, the share); an int holds out that many. 0 holds out none. Otherwise each side gets at
            least one task when there are two or more.
        seed: another seed, another choice.

    Raises:
        InputError: `held_out` is out of range, or leaves nothing to train on.
    """
    check_held_out(held_out)
    if isinstance(held_out, int) and 0 < held_out >= len(tasks):
        raise InputError(f"held_out={held_out} of {len(tasks)} tasks leaves none to train on")
    if held_out == 0:
        return tuple(tasks), ()
    places = {task.id: place(task.id, seed) for task in tasks}
    by_place = sorted(places, key=lambda task_id: (places[task_id], task_id))
    if isinstance(held_out, int):
        chosen = set(by_place[:held_out])
    else:
        chosen = {task_id for task_id in by_place if places[task_id] < held_out}
        if len(by_place) > 1:
            chosen = (chosen | {by_place[0]}) - ({by_place[-1]} if len(chosen) == len(by_place) else set())
    train = tuple(task for task in tasks if task.id not in chosen)
    if not train:
        raise InputError("the only task is held out, none is left to train on", "Add tasks, or set held_out to 0.")
    return train, tuple(task for task in tasks if task.id in chosen)


def check_held_out(held_out: float) -> None:
    """Refuse what is neither a share nor a number of tasks.

    Raises:
        InputError: it is negative, not finite, or a share of 1 or more.
    """
    if isinstance(held_out, bool) or held_out != held_out:
        raise InputError(f"held_out must be a share or a number of tasks, not {held_out}")
    if isinstance(held_out, int) and held_out < 0:
        raise InputError(f"held_out must not be negative, is {held_out}")
    if not isinstance(held_out, int) and not 0 <= held_out < 1:
        raise InputError(
            f"held_out={held_out} is no share",
            "Give a number from 0 to below 1, or an integer, a count of tasks.",
        )


def place(task_id: str, seed: int) -> float:
    """Where a hash of seed and task id puts the task in [0, 1)."""
    digest = hashlib.sha256(f"{seed}:{task_id}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:7], "big") / 2**56
