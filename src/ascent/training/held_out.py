"""A run's own measurements on held-out tasks: before training, in between, and after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ascent.config.sections import TrackingSection
from ascent.errors import InputError
from ascent.rewards.code import CodeReward
from ascent.training.arguments import GRPOConfig
from ascent.training.evaluation import Evaluation, evaluate
from ascent.training.policy_tasks import RunTasks
from ascent.training.records.evaluations import check_evaluation_batch
from ascent.training.trainer import GRPOTrainer
from ascent.types import Task


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What is measured, and by what. `say` takes a sentence to the user. Its methods are collective."""

    trainer: GRPOTrainer
    judge: CodeReward
    tasks: Sequence[Task]
    section: TrackingSection
    say: Callable[[str], None]

    def measure(self, when: str) -> Evaluation | None:
        """The weights as they are now; None where the run doesn't evaluate. `when` is "before", "during" or "after"."""
        if not self.section.evaluate or not self.tasks or self.trainer.engine is None:
            return None
        result = evaluate(self.trainer, self.judge, self.tasks, samples=self.section.eval_samples, name=when)
        place = f"after step {result.step}" if when == "during" else when
        self.say(f"held-out pass rate {place}: greedy {result.greedy:.1%}, sampled {result.sampled:.1%}")
        return result

    def after_step(self) -> None:
        """Measure where `tracking.eval_every` says so; not when the training ends here, which has a measurement of its
        own or is to end soon."""
        every, state = self.section.eval_every, self.trainer.state
        ends = state.global_step >= state.max_steps or self.trainer.control.should_training_stop
        if every is not None and state.global_step % every == 0 and not ends and (found := self.measure("during")):
            for name in ("greedy", "sampled"):  # for trackers, with the step that is about to be logged
                self.trainer._metrics["train"][f"held_out/{name}"].append(getattr(found, name))


def trl_evaluates(args: GRPOConfig) -> bool:
    """Whether TRL evaluates too, in between."""
    return args.eval_strategy != "no" or args.eval_on_start


def check_held_out(tasks: RunTasks, section: TrackingSection, args: GRPOConfig) -> None:
    """Raise InputError where something is to be measured that can't be."""
    asked = "trainer.eval_strategy and trainer.eval_on_start" if trl_evaluates(args) else None
    asked = asked or (None if section.eval_every is None else "tracking.eval_every")
    if asked is not None and not tasks.held_out:
        verb = "evaluates" if asked == "tracking.eval_every" else "evaluate"
        raise InputError(f"{asked} {verb} on held-out tasks, but there are none", "Hold some out with tasks.held_out.")
    if trl_evaluates(args):
        check_evaluation_batch(args, args.num_generations_eval or args.num_generations or 1)
