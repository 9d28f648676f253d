"""What does it save to ask for a replacement the moment a group turns out to be without signal?

    python benchmarks/dynamic_sampling.py [MODEL] [--tasks builtin] [--groups 8] [--tokens 48] [--temperature 1]

One trainer with vLLM in its process and the real sandbox. Steps alternate between asking for replacements at once and
asking when all groups of a round are scored; the policy stays as it is (learning rate 0). All completions are judged,
but those of half of the tasks are given the same score. Prints the seconds of sampling and of waiting for scores for
each group that was drawn, medians and quartiles, and their ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import zlib
from dataclasses import dataclass, field, replace
from typing import Any

from unrecorded import Unrecorded

from ascent.host.process import quieten_transformers, set_up_process

set_up_process()
_WARM_UP = 4  # steps


@dataclass
class Alternating(Unrecorded):
    """A recorder that keeps the seconds a drawn group of each step, and changes the way after it."""

    trainer: Any = None
    at_once: list[float] = field(default_factory=list)
    in_rounds: list[float] = field(default_factory=list)

    def step(self, record: Any) -> dict[str, float]:
        refill = self.trainer._refill
        judging = refill._judging
        if record.step > _WARM_UP:
            seconds = record.times.generate + record.times.reward_exposed
            taken = self.in_rounds if judging.in_batches else self.at_once
            taken.append(seconds / record.metrics["sampling/groups_drawn"])
        refill._judging = replace(judging, in_batches=not judging.in_batches)
        return {}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="builtin:starter")
    parser.add_argument("--tasks", default="builtin")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=24)
    args = parser.parse_args()
    quieten_transformers()
    from ascent import CodeReward, GRPOConfig, GRPOTrainer, devices

    class HalfSilent(CodeReward):
        def __call__(self, completions: Any, task_id: Any, **columns: Any) -> list[float | None]:
            judged = super().__call__(completions, task_id, **columns)
            return [
                0.0 if zlib.crc32(task.encode()) % 2 else score for task, score in zip(task_id, judged, strict=True)
            ]

    from ascent.models.folder import model_folder
    from ascent.sandbox import Sandbox
    from ascent.tasks.loading import load_tasks
    from ascent.tasks.prompts import with_prompt
    from ascent.training.policy_tasks import to_dataset

    if devices.kind() == "cpu":
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    tasks = [with_prompt(task, chat=False) for task in load_tasks(args.tasks).tasks]
    recorder = Alternating()
    folder = str(model_folder(args.model))
    with Sandbox() as sandbox, tempfile.TemporaryDirectory() as output:
        arguments = GRPOConfig(
            output,
            per_device_train_batch_size=8 * args.groups,
            num_generations=8,
            max_completion_length=args.tokens,
            temperature=args.temperature,
            max_steps=_WARM_UP + args.steps,
            max_resample_factor=4.0,
            learning_rate=0.0,
            bf16=False,
            use_cpu=devices.kind() == "cpu",
            use_vllm=True,
            vllm_mode="colocate",
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        recorder.trainer = GRPOTrainer(
            folder,
            HalfSilent(tasks, sandbox=sandbox),
            arguments,
            train_dataset=to_dataset(tasks),
            recorder=recorder,
            verify=False,
        )
        recorder.trainer.train()
        recorder.trainer.engine.close()
    medians = []
    for what, seconds in (("at once", recorder.at_once), ("in rounds", recorder.in_rounds)):
        low, middle, high = statistics.quantiles(seconds)
        medians.append(middle)
        print(f"{what}: {middle:.4f} s a drawn group (quartiles {low:.4f} and {high:.4f}, {len(seconds)} steps)")
    print(f"ratio {medians[0] / medians[1]:.2f}")


if __name__ == "__main__":
    main()
