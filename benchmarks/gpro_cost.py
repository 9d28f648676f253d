"""What does the second gradient of GPRO cost?

    python benchmarks/gpro_cost.py [MODEL] [--rounds 12] [--groups 16] [--tokens 32] [--engine transformers]

One trainer on the built-in tasks with the real sandbox; the policy stays as it is (learning rate 0). Its steps take the
options in turn, so that all meet the same machine. Prints, for each option, medians and quartiles of the second pass's
seconds by the first pass's (forward and backward, of the same step), and of the whole step's by GRPO's in that round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from unrecorded import Unrecorded

from ascent.host.process import quieten_transformers, set_up_process

set_up_process()
_WARM_UP = 2  # rounds
_FIXED: Mapping[str, Any] = {"gradient_penalty_radius": 1e-3}
OPTIONS: Mapping[str, Mapping[str, Any] | None] = {
    "GRPO": None,
    "all rows, all weights": _FIXED,
    "norm layers' weights": {**_FIXED, "gradient_penalty_parameters": "norms"},
    "fraction 0.5": {**_FIXED, "gradient_penalty_fraction": 0.5},
    "fraction 0.25": {**_FIXED, "gradient_penalty_fraction": 0.25},
}


@dataclass
class Turns(Unrecorded):
    """A recorder that has the options take turns, and keeps their seconds (see `records.recorder.Recorder`)."""

    trainer: Any = None
    first: float = 0.0  # seconds of this step's first passes
    option: int = 0
    rounds: int = 0
    seconds: dict[str, list[tuple[float, float, float]]] = field(default_factory=lambda: defaultdict(list))

    def step(self, record: Any) -> None:
        """A step has ended: keep (first, second, step), go on with the next option."""
        if self.rounds >= _WARM_UP:
            second = record.metrics.get("gradient_penalty/seconds") or 0.0
            self.seconds[list(OPTIONS)[self.option]].append((self.first, second, record.times.step))
        self.option = (self.option + 1) % len(OPTIONS)
        self.rounds += self.option == 0
        self.take()

    def take(self) -> None:
        """The option whose turn it is."""
        from ascent.algorithms.gpro import GPRO

        settings = list(OPTIONS.values())[self.option]
        adjustment = None if settings is None else GPRO(**settings).adjustment(self.trainer, lambda text: None)
        self.trainer._batches = replace(self.trainer._batches, adjustment=adjustment)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="builtin:starter")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--engine", choices=["transformers", "vllm"], default="transformers")
    args = parser.parse_args()
    quieten_transformers()
    turns = measure(args)
    usual = [step for _, _, step in turns.seconds["GRPO"]]
    for name, seconds in turns.seconds.items():
        if name == "GRPO":
            print(f"GRPO: first pass {_middle([first for first, _, _ in seconds])} s; step {_middle(usual)} s")
            continue
        whole = _middle([step / other for (_, _, step), other in zip(seconds, usual, strict=True)])
        print(f"{name}: second pass / first {_middle([second / first for first, second, _ in seconds])}; step {whole}")


def measure(args: argparse.Namespace) -> Turns:
    """Train for all rounds."""
    from ascent import CodeReward, GPROConfig, GPROTrainer, devices
    from ascent.models.folder import model_folder
    from ascent.sandbox import Sandbox
    from ascent.tasks.loading import load_tasks
    from ascent.tasks.prompts import with_prompt
    from ascent.training.policy_tasks import to_dataset

    if devices.kind() == "cpu":
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    tasks = [with_prompt(task, chat=False) for task in load_tasks("builtin").tasks]
    turns = Turns()
    with Sandbox() as sandbox, tempfile.TemporaryDirectory() as output:
        trainer: Any = GPROTrainer(
            str(model_folder(args.model)),
            CodeReward(tasks, sandbox=sandbox),
            GPROConfig(
                output,
                per_device_train_batch_size=8 * args.groups,
                num_generations=8,
                max_completion_length=args.tokens,
                max_steps=len(OPTIONS) * (_WARM_UP + args.rounds),
                learning_rate=0.0,
                bf16=devices.supports_bf16(),
                use_cpu=devices.kind() == "cpu",
                use_vllm=args.engine == "vllm",
                vllm_mode="colocate",
                gradient_checkpointing=False,
                report_to="none",
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                **_FIXED,
            ),
            train_dataset=to_dataset(tasks),
            recorder=turns,
            verify=False,
        )
        turns.trainer = trainer
        window = trainer._batches.window
        usual = window.train

        def timed(*given: Any, **keywords: Any) -> Any:
            devices.synchronize()
            began = time.perf_counter()
            done = usual(*given, **keywords)
            devices.synchronize()
            turns.first = time.perf_counter() - began
            return done

        window.train = timed
        turns.take()
        trainer.train()
        trainer.engine.close()
    return turns


def _middle(values: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(values)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
