"""What the warm start learns from: solutions of the built-in tasks' training half, most of them with a mistake.

A policy that has seen right solutions only has nothing left to learn from rewards, and one whose mistakes are spread
evenly is right whenever it decodes greedily. So one mistake of each template is made more often than the right
solution is given: the policy prefers it, knows the right solution too, and rewards have to turn the two around.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ascent.tasks.builtin import BuiltinTask, held_out_builtin

HELD_OUT_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Noise:
    """`mistakes`: the share of examples with a mistake; `dominant`: the share of these with the task's first one."""

    mistakes: float = 0.72
    dominant: float = 0.75


def training_tasks(seed: int) -> tuple[BuiltinTask, ...]:
    """The training half that `held_out: 0.2` with this `tasks.seed` leaves."""
    return held_out_builtin(seed, HELD_OUT_SHARE)[0]


def noisy_solution(task: BuiltinTask, noise: Noise, rng: random.Random) -> str:
    """A completion of the task: its solution or, with probability `noise.mistakes`, one of its wrong solutions."""
    if rng.random() >= noise.mistakes:
        return task.solution
    if rng.random() < noise.dominant:
        return task.wrong_solutions[0]
    return rng.choice(task.wrong_solutions[1:])


def examples(tasks: Sequence[BuiltinTask], noise: Noise, seed: int) -> Iterator[tuple[str, str]]:
    """(prompt, completion) without end: every task once a round, in a new order and with noise drawn anew."""
    rng = random.Random(seed)
    while True:
        for task in rng.sample(tasks, len(tasks)):
            yield str(task.task.prompt), noisy_solution(task, noise, rng)
