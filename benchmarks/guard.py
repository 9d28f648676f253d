"""What does the guard against bad steps cost?

    python benchmarks/guard.py MODEL [--steps 40] [--batch 128] [--completion 32] [--accumulation 1]

Trains MODEL (a folder, a hub id, or builtin:starter) with the transformers engine, and times what the guard does in
each step: remembering its passes and their random states, and judging the gradient's norm, the read from the device
included. Where the device has work queued the read waits for it, which the step would do a little later anyway: with
--wait the device is waited for beforehand, so that only the guard's own time is left. Prints medians and the share of a
step; with --json, one object.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unrecorded import Unrecorded

from ascent.host.process import quieten_transformers, set_up_process

_WARM_UP = 3  # steps


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=128, help="completions of a micro-batch")
    parser.add_argument("--completion", type=int, default=32, help="tokens of a completion, at most")
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--wait", action="store_true", help="wait for the device before the guard is timed")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    set_up_process()
    quieten_transformers()
    found = measure(args)
    if args.json:
        print(json.dumps(found))
        return
    print(
        f"a step takes {found['step_seconds']:.3f} s, the guard {found['guard_seconds'] * 1e6:.0f} µs of it: "
        f"{found['share']:.3%} (worst step {found['worst_share']:.3%}; {found['steps']} steps, {found['device']})"
    )


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Medians over the steps after the first few."""
    from ascent import devices

    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(args, Path(folder))
        seconds: list[float] = [0.0]
        numerics, wait = trainer._numerics, devices.synchronize if args.wait else lambda: None
        for thing, name in ((numerics.passes, "note"), (numerics.passes, "forget"), (numerics.guard, "refuses")):
            setattr(thing, name, functools.partial(_timed, getattr(thing, name), seconds, wait))
        steps: list[tuple[float, float]] = []
        finish = trainer._finish_step

        def finished(norm: Any) -> None:
            finish(norm)
            steps.append((trainer._recorder.steps[-1].times.step, seconds[0]))
            seconds[0] = 0.0

        trainer._finish_step = finished
        trainer.train()
    steps = steps[_WARM_UP:]
    step, guard = (statistics.median(each[place] for each in steps) for place in (0, 1))
    return {
        "step_seconds": step,
        "guard_seconds": guard,
        "share": guard / step,
        "worst_share": max(guard / step for step, guard in steps),
        "steps": len(steps),
        "device": devices.name(),
    }


def _timed(
    call: Callable[..., Any], seconds: list[float], wait: Callable[[], None], *args: Any, **keywords: Any
) -> Any:
    wait()
    began = time.perf_counter()
    try:
        return call(*args, **keywords)
    finally:
        seconds[0] += time.perf_counter() - began


class _Steps(Unrecorded):
    """A Recorder that keeps the steps' records."""

    def __init__(self) -> None:
        self.steps: list[Any] = []

    def step(self, record: Any) -> None:
        self.steps.append(record)


def _trainer(args: argparse.Namespace, folder: Path) -> Any:
    from datasets import Dataset

    from ascent import GRPOConfig, GRPOTrainer, devices
    from ascent.models.folder import load_tokenizer, model_folder

    model = model_folder(args.model)
    bf16 = devices.supports_bf16()
    config = GRPOConfig(
        str(folder),
        per_device_train_batch_size=args.batch,
        gradient_accumulation_steps=args.accumulation,
        num_generations=8,
        max_completion_length=args.completion,
        max_steps=args.steps + _WARM_UP,
        learning_rate=1e-6,
        bf16=bf16,
        use_cpu=devices.kind() == "cpu",
        report_to="none",
        save_strategy="no",
        gradient_checkpointing=False,
        disable_tqdm=True,
        logging_strategy="no",
    )
    rows = [{"prompt": f"def f{number}(a):"} for number in range(64)]
    return GRPOTrainer(
        str(model),
        lambda completions, **_: [float(len(set(text))) for text in completions],
        config,
        train_dataset=Dataset.from_list(rows),
        processing_class=load_tokenizer(model),
        engine="transformers",
        recorder=_Steps(),
    )


if __name__ == "__main__":
    main()
