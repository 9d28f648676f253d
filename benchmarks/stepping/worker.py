"""One system in a process of its own: does one step each time it is told to, and sleeps otherwise.

Lines of JSON go both ways. In: {"do": "step"}, {"do": "dense", ...}, {"do": "end"}. Out: {"ready": true}, then the
figures of each.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from stepping.systems import DENSE, SYSTEMS, build
from stepping.watching import Watch


def serve(system: str, workload: str, folder: Path) -> None:
    """Until told to end, or nobody is there to tell."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed is none
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from ascent.host.process import quieten_transformers, set_up_process

    set_up_process(on_cpu=True)
    quieten_transformers()
    with contextlib.ExitStack() as stack:
        trainer = build(SYSTEMS[system], workload, folder, stack)
        if system == DENSE:
            _serve_dense(trainer, answers)
        else:
            _serve_steps(trainer, answers)
    answers.flush()
    os._exit(0)  # vLLM's threads don't end by themselves


def _tell(answers: TextIO, figures: Any) -> None:
    answers.write(json.dumps(figures) + "\n")


def _next() -> dict[str, Any]:
    line = sys.stdin.readline()
    return json.loads(line) if line else {"do": "end"}


def _serve_steps(trainer: Any, answers: TextIO) -> None:
    """The trainer's own loop, which waits between two steps."""
    from transformers import PrinterCallback, TrainerCallback

    watch = Watch(trainer)

    class Waits(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            watch.watch_optimizer()
            _tell(answers, {"ready": True})
            self._wait(control)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            _tell(answers, watch.end())
            self._wait(control)

        def _wait(self, control: Any) -> None:
            control.should_training_stop = _next()["do"] == "end"
            watch.begin()

    trainer.add_callback(Waits())
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def _serve_dense(trainer: Any, answers: TextIO) -> None:
    """Seconds per token of TRL's forward and backward pass of rows of equal length, without padding."""
    from ascent.training.trial.dense import dense_cost

    _tell(answers, {"ready": True})
    while (asked := _next())["do"] != "end":
        found = dense_cost(trainer, asked["prompt"], asked["completion"])
        _tell(answers, asdict(found))
