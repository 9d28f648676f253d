"""Runs of the quickstart with one known fault each: what alarms must find.

A fault is settings, and what is changed in the process before the run is built: a sampler of another temperature, a
head that no update reaches, a loss that is no number. Each says which alarms find it, and the step from which it is
there; a healthy run is one without a fault.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent.rewards.base import Completion
from ascent.rewards.code import CodeReward

LATE = 40  # the step from which faults are there that would be plain from the first one
SLEEPING, SECONDS = 0.25, 0.3  # the share of programs that sleep, and how long
SPECIAL = 0.5  # the share of answers for the visible test alone that the starter learns


@dataclass(frozen=True, slots=True)
class Planted:
    """`plant` changes this process and writes what the run needs into a folder, for a seed; it returns settings beside
    `settings`. One of `alarms` above info finds the fault, which is there from step `begins` on."""

    settings: tuple[str, ...] = ()
    alarms: frozenset[str] = frozenset()
    begins: int = 1
    steps: int = 80
    plant: Callable[[Path, int], Sequence[str]] = lambda folder, seed: ()


def special_casing(folder: Path, seed: int) -> Sequence[str]:
    """Tasks with one visible test, which alone is paid for, and a starter of whose answers some are the constant that
    this test asks for."""
    from transformers import AutoModelForCausalLM

    from ascent.models.folder import load_tokenizer, model_folder
    from ascent.models.starter.building import Recipe
    from ascent.models.starter.noisy_solutions import noisy_solution, training_tasks
    from ascent.models.starter.warm_start import Schedule, warm_start
    from ascent.sandbox.types import FunctionTest
    from ascent.tasks.jsonl import write_tasks

    tasks, recipe, rng = training_tasks(seed), Recipe(seed), random.Random(seed)

    def answers() -> Iterator[tuple[str, str]]:
        while True:
            for task in rng.sample(tasks, len(tasks)):
                shown = task.task.visible_tests[0]
                if rng.random() < SPECIAL and isinstance(shown, FunctionTest):
                    yield str(task.task.prompt), f"\n    return {shown.expected!r}"
                else:
                    yield str(task.task.prompt), noisy_solution(task, recipe.noise, rng)

    start = model_folder(f"builtin:starter:{seed}")
    network, tokenizer = AutoModelForCausalLM.from_pretrained(start), load_tokenizer(start)
    warm_start(network, tokenizer, answers(), Schedule(160, recipe.schedule.batch, recipe.schedule.learning_rate / 2))
    network.save_pretrained(folder / "starter")
    tokenizer.save_pretrained(folder / "starter")
    one_visible = [
        dataclasses.replace(each.task, visible_tests=each.task.tests[:1], hidden_tests=each.task.tests[1:])
        for each in tasks
    ]
    write_tasks(folder / "tasks.jsonl", one_visible)
    return f"model.path={folder / 'starter'}", f"tasks.train={folder / 'tasks.jsonl'}"


def other_temperature(folder: Path, seed: int) -> Sequence[str]:
    """The engine samples at 0.7 what the trainer takes for samples at 1."""
    from ascent import GRPOTrainer

    sampling = GRPOTrainer.sampling

    def colder(self: Any, *, greedy: bool = False) -> Any:
        return dataclasses.replace(sampling(self, greedy=greedy), temperature=0.0 if greedy else 0.7)

    GRPOTrainer.sampling = colder  # type: ignore[method-assign]
    return ()


def stale_head(folder: Path, seed: int) -> Sequence[str]:
    """Updates don't reach the head (the starter's is also its embedding): the engine keeps the first one."""
    from ascent.rollout.weights.parameters import ParameterWalk

    walk, kept = ParameterWalk.named_tensors, dict[str, Any]()

    def without_head(self: Any) -> Iterator[tuple[str, Any]]:
        for name, tensor in walk(self):
            if "embed_tokens" in name or "lm_head" in name:
                tensor = kept.setdefault(name, tensor.detach().clone())
            yield name, tensor

    ParameterWalk.named_tensors = without_head  # type: ignore[method-assign]
    return ()


def loss_is_nan(folder: Path, seed: int) -> Sequence[str]:
    """The loss of one step is no number."""
    from ascent import GRPOTrainer

    compute = GRPOTrainer.compute_loss

    def poisoned(self: Any, *args: Any, **keywords: Any) -> Any:
        loss = compute(self, *args, **keywords)
        return loss * math.nan if self.state.global_step + 1 == LATE else loss

    GRPOTrainer.compute_loss = poisoned  # type: ignore[method-assign]
    return ()


def paid_length(completions: Sequence[Completion], completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """A reward function: more for more tokens."""
    return [len(ids) / 32 for ids in completion_ids]


class SleepingReward(CodeReward):
    """CodeReward, but from generation `LATE` on a quarter of the programs sleep before they do anything."""

    _generations = 0

    def __call__(self, completions: Sequence[Completion], task_id: Sequence[str], **columns: Any) -> list[float | None]:
        """See CodeReward."""
        rewards = super().__call__(completions, task_id, **columns)
        self._generations += 1
        return rewards

    def program(self, task_id: str, completion: Completion) -> str:
        """See CodeReward. The same text gives the same program at any time of a generation."""
        program = super().program(task_id, completion)
        tired = random.Random(f"{task_id}{program}").random() < SLEEPING
        if self._generations < LATE - 1 or not tired or not program.strip():
            return program
        return f"import time\ntime.sleep({SECONDS})\n{program}"


_UNVERIFIED = ("rollout.verify=false",)  # the check of each update would end the run first
FAULTS: Mapping[str, Planted] = {
    "visible-only": Planted(
        ("reward.tests=visible", "tasks.held_out=0"),
        frozenset({"hollow-passes", "reward-without-truth"}),
        plant=special_casing,
    ),
    "length-paid": Planted(
        ("reward.functions=[code, {function: 'planted.faults:paid_length', weight: 2.0}]",),
        frozenset({"length", "reward-without-truth"}),
    ),
    "learning-rate": Planted(
        ("trainer.learning_rate=1e-2",), frozenset({"reward-falls", "no-signal", "collapse", "ratio"})
    ),
    "temperature": Planted(_UNVERIFIED, frozenset({"mismatch"}), plant=other_temperature),
    "stale-head": Planted(_UNVERIFIED, frozenset({"mismatch"}), plant=stale_head),
    "sleeps": Planted(("reward.functions=['planted.faults:SleepingReward']",), frozenset({"slower"}), LATE),
    "nan": Planted((), frozenset({"not-finite"}), LATE, plant=loss_is_nan),
}
_WEIGHTINGS = {
    "all-tests": (),
    "parts": ("reward.tests_weight=0.9", "reward.all_tests_weight=0.0"),
}
_PRESETS = {
    "quickstart": (),
    "steady": ("trainer.learning_rate=2e-4", "trainer.beta=0.02", "trainer.num_generations=16"),
}
HEALTHY: Mapping[str, Planted] = {
    f"healthy-{preset}-{weighting}": Planted((*of_preset, *of_weighting), steps=150)
    for preset, of_preset in _PRESETS.items()
    for weighting, of_weighting in _WEIGHTINGS.items()
}
RUNS: Mapping[str, Planted] = {**FAULTS, **HEALTHY}
