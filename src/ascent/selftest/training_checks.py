"""Checks that train as a user does: `ascent train` in a process of its own, then what it left in its run directory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml

from ascent.host.children import Ended, run_child
from ascent.memory import measured
from ascent.rollout.weights.verify.expected_differences import expected_difference
from ascent.selftest.report import CheckResult
from ascent.tracking.run_directory import RunDirectory, read_metrics

_RESUME_STEPS = 6


def write_config(folder: Path, *, engine: str, steps: int, save_steps: int) -> Path:
    """A short run with the tiny policy of the probe."""
    config = {
        "model": {"path": str(folder / "policy")},
        "tasks": {"train": "builtin"},
        "rollout": {"engine": engine},
        "memory": {"kv_cache_mb": 64},
        "sandbox": {"require": "none"},
        "tracking": {"folder": str(folder / "runs"), "evaluate": False},
        "trainer": {
            "num_generations": 8,
            "per_device_train_batch_size": 32,
            "max_completion_length": 24,
            "learning_rate": 5e-4,
            "lr_scheduler_type": "constant",
            "gradient_checkpointing": False,
            "max_steps": steps,
            "save_steps": save_steps,
        },
    }
    path = folder / f"{engine}.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


def train(folder: Path, steps: int, *, on_cpu: bool, engine: str, dtype: str) -> list[CheckResult]:
    """`steps` steps: finite numbers and a gradient; then whether the engine sampled with the trainer's weights."""
    config = write_config(folder, engine=engine, steps=steps, save_steps=1000)
    ended = _train(folder, [str(config), "tracking.name=steps"], on_cpu)
    lines = read_metrics(folder / "runs" / "steps" / "metrics.jsonl")
    name = f"{steps} training steps ({engine})"
    if ended.code != 0 or len(lines) != steps:
        return [failed(name, ended, f"ended after {len(lines)} of {steps} steps, exit code {ended.code}")]
    watched = ("loss", "reward", "grad_norm", "entropy")
    strange = [
        f"{key} in step {line['step']}: {line.get(key)}"
        for line in lines
        for key in watched
        if not isinstance(line.get(key), float) or not math.isfinite(line[key])
    ]
    if not any(line["grad_norm"] for line in lines):
        strange.append("the gradient was zero in every step")
    few = max(1, steps // 4)
    figures = {
        "first reward": _mean(lines[:few], "reward"),
        "last reward": _mean(lines[-few:], "reward"),
        "seconds a step": sum(line["times"]["step"] for line in lines[1:] or lines) / len(lines[1:] or lines),
        "peak GiB": max(line["device"]["peak_bytes"] for line in lines) / 2**30,
    }
    what = "; ".join(strange[:3]) or "loss, reward, gradient and entropy are finite in every step"
    results = [CheckResult(name, "failed" if strange else "passed", ended.seconds, what, figures)]
    if engine == "vllm":
        results.append(compare_engine(lines, dtype))
    results.append(compare_memory(folder / "runs" / "steps"))
    return results


def compare_memory(run: Path) -> CheckResult:
    """Each phase's peak beside what was planned: figures to report, which judge the plan, not the card."""
    name, kept = "memory by phase", measured.read(run)
    if kept is None or not kept["compared"]:
        return CheckResult(name, "failed", 0.0, "no phase's memory was both planned and measured")
    figures = {
        f"{row['phase']}, {what} MiB": row[what] / 2**20 for row in kept["compared"] for what in ("measured", "planned")
    }
    told = "; ".join(finding["what"] for finding in kept["findings"])
    return CheckResult(name, "passed", 0.0, told or "planned and measured, phase by phase", figures)


def compare_engine(lines: list[dict[str, Any]], dtype: str) -> CheckResult:
    """Whether the engine sampled each step with the trainer's weights."""
    means = [float(line["sampling/sampling_logp_difference/mean"]) for line in lines]
    largest = [float(line["sampling/sampling_logp_difference/max"]) for line in lines]
    limit = expected_difference(dtype, dtype).usual
    good = max(means) <= limit
    what = f"mean log-probability difference of engine and trainer at most {limit:g} in every step ({dtype})"
    if not good:
        what = f"engine and trainer have drifted apart: mean difference {max(means):.3g}, allowed {limit:g} ({dtype})"
    figures = {"largest mean": max(means), "largest": max(largest)}
    return CheckResult("weights follow the training", "passed" if good else "failed", 0.0, what, figures)


def resume(folder: Path, *, on_cpu: bool) -> CheckResult:
    """A run killed after a checkpoint and resumed makes the same steps as one that was left alone."""
    name = "kill and resume"
    steps, save = _RESUME_STEPS, 2
    config = write_config(folder, engine="transformers", steps=steps, save_steps=save)
    whole = _train(folder, [str(config), "tracking.name=whole"], on_cpu)
    if whole.code != 0:
        return failed(name, whole, f"the run that was left alone ended with exit code {whole.code}")
    run = RunDirectory(folder / "runs" / "killed")
    log = folder / "killed.log"
    killed = run_child(
        ["ascent", "train", str(config), "tracking.name=killed", "--force"],
        log,
        300,
        on_cpu=on_cpu,
        kill_when=lambda: run.last_checkpoint() is not None,
    )
    if killed.code is not None or run.last_checkpoint() is None:
        return failed(name, killed, f"the run wrote no checkpoint to be killed after, exit code {killed.code}")
    resumed = _train(folder, ["--resume", str(run.path)], on_cpu)
    seconds = whole.seconds + killed.seconds + resumed.seconds
    if resumed.code != 0:
        return failed(name, resumed, f"the resumed run ended with exit code {resumed.code}")
    left_alone = read_metrics(folder / "runs" / "whole" / "metrics.jsonl")
    continued = read_metrics(run.metrics)
    return compare_steps(name, left_alone, continued, save, steps, seconds)


def compare_steps(
    name: str, whole: list[dict[str, Any]], resumed: list[dict[str, Any]], save: int, steps: int, seconds: float
) -> CheckResult:
    """Metric lines of a run left alone against those of one resumed after step `save`."""
    seen = [line["step"] for line in resumed]
    if seen != list(range(1, steps + 1)):
        return CheckResult(name, "failed", seconds, f"metrics.jsonl has the steps {seen}, expected 1 to {steps}")
    pairs = list(zip(whole, resumed, strict=True))[save:]
    keys = ("loss", "reward", "grad_norm")
    differences = {key: max(abs(mine[key] - theirs[key]) for mine, theirs in pairs) for key in keys}
    good = differences["reward"] == 0 and differences["loss"] <= 1e-4
    what = f"steps {save + 1} to {steps} are those of a run that was left alone"
    if not good:
        what = f"steps {save + 1} to {steps} differ from those of a run that was left alone"
    figures = {f"largest difference of {key}": value for key, value in differences.items()}
    return CheckResult(name, "passed" if good else "failed", seconds, what, figures)


def failed(name: str, ended: Ended, what: str) -> CheckResult:
    """A check whose process failed, with the end of its output and what is known of the fault."""
    from ascent.environment import explain_failure

    known = explain_failure(ended.output)
    detail = ended.last_lines + (f"\n{known}" if known else "")
    return CheckResult(name, "failed", ended.seconds, what, detail=detail)


def _train(folder: Path, arguments: list[str], on_cpu: bool) -> Ended:
    log = folder / "train.log"
    return run_child(["ascent", "train", *arguments, "--force"], log, 300, on_cpu=on_cpu)


def _mean(lines: list[dict[str, Any]], key: str) -> float:
    return sum(float(line[key]) for line in lines) / len(lines)
