"""Watches a trainer from outside, TRL's and Ascent's alike: where a step's time goes, and what it trained on."""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from ascent.bench.training.bound import SMALLEST_ADVANTAGE, needed

Figures = dict[str, float]
_PARTS = ("prompt", "completion")


class Watch:
    """Seconds of the parts of a step, and its batch. Times nest: `generate` holds `sync`."""

    def __init__(self, trainer: Any) -> None:
        """Put itself around the trainer's methods."""
        self._trainer = trainer
        self._seconds: dict[str, float] = defaultdict(float)
        self._batch: dict[str, Any] = {}
        self._time(trainer, "_generate_single_turn", "generate")
        self._time(trainer, "_calculate_rewards", "reward")
        self._time(trainer, "_get_per_token_logps_and_entropies", "logps", when=_without_gradient)
        if hasattr(trainer, "vllm_generation"):
            self._time(trainer.vllm_generation, "sync_weights", "sync")
        if hasattr(trainer, "_sampler"):
            self._time(trainer._sampler, "sync", "sync")
        self._keep_batch(trainer)

    def watch_optimizer(self) -> None:
        """Once the trainer has one."""
        self._time(self._trainer.optimizer, "step", "optimizer")

    def begin(self) -> None:
        """A step begins."""
        self._seconds.clear()
        self._began, self._cpu = time.perf_counter(), time.process_time()

    def end(self) -> Figures:
        """The step has ended: its figures. Seconds, tokens, MiB."""
        step, cpu = time.perf_counter() - self._began, time.process_time() - self._cpu
        times = {name: self._seconds[name] for name in ("generate", "sync", "reward", "logps", "optimizer")}
        times["generate"] -= times["sync"]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        shares = self._trainer._metrics["train"].get("batch/computed_rows") or [1.0]
        return {
            "step": step,
            "cpu": cpu,
            **times,
            **counted(self._batch),
            "computed_rows": shares[-1],
            "peak_mib": peak,
        }

    def _time(self, owner: Any, name: str, part: str, when: Callable[[], bool] = lambda: True) -> None:
        inner = getattr(owner, name)

        def timed(*args: Any, **keywords: Any) -> Any:
            if not when():
                return inner(*args, **keywords)
            began = time.perf_counter()
            try:
                return inner(*args, **keywords)
            finally:
                self._seconds[part] += time.perf_counter() - began

        setattr(owner, name, timed)

    def _keep_batch(self, trainer: Any) -> None:
        inner = trainer._generate_and_score_completions

        def generate(*args: Any, **keywords: Any) -> Any:
            self._batch = inner(*args, **keywords)
            return self._batch

        trainer._generate_and_score_completions = generate


def _without_gradient() -> bool:
    import torch

    return not torch.is_grad_enabled()


def counted(batch: dict[str, Any]) -> Figures:
    """Of a generation: its samples and completion tokens; how many prompt and completion tokens carry gradient, every
    prompt and every different completion of it counted once; and the means of one row."""
    signal_B = batch["advantages"].abs().reshape(len(batch["advantages"]), -1).amax(1) > SMALLEST_ADVANTAGE
    found = [
        (*(batch[f"{name}_ids"][row][batch[f"{name}_mask"][row].bool()].cpu().numpy() for name in _PARTS), signal)
        for row, signal in enumerate(signal_B.tolist())
    ]
    lengths = [(len(prompt), len(completion)) for prompt, completion, _ in found]
    carrying = needed(found)
    rows = len(lengths)
    return {
        "samples": rows,
        "tokens": sum(completion for _, completion in lengths),
        "needed_prompt": carrying.prompt,
        "needed_completion": carrying.completion,
        "mean_prompt": sum(prompt for prompt, _ in lengths) / rows,
        "mean_completion": sum(completion for _, completion in lengths) / rows,
    }
