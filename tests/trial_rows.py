"""Stand-in completions and steps, as a trial leaves them."""

from __future__ import annotations

from typing import Any

from ascent.training.trial.found import Found, Tried

PHASES = ("generate", "reward_exposed", "logps", "update", "sync", "other")


def row(group: int, index: int, **given: Any) -> dict[str, Any]:
    """A completion of 10 tokens that passes one of its two tests."""
    return {
        "sample_id": f"run/0/0/{group}-{index}",
        "group_id": f"g{group}",
        "task_id": f"task/{group}",
        "generation": 0,
        "step": 1,
        "prompt": f"Do {group}.",
        "completion": f"    return {index}",
        "prompt_ids": [1, 2, 3, group],
        "completion_ids": [index] * 10,
        "finish_reason": "stop",
        "reward": 0.5,
        "advantage": 1.0,
        "signal": True,
        "compiled": True,
        "outcomes": ["passed", "failed"],
        "sandbox_seconds": 0.1,
        "sample_seconds": 1.0,
        "kept": True,
        **given,
    }


def rows(groups: int, of: int = 4, **given: Any) -> list[dict[str, Any]]:
    """`of` completions of each group."""
    return [row(group, index, **given) for group in range(groups) for index in range(of)]


def line(step: int, **seconds: float) -> dict[str, Any]:
    """A line of metrics.jsonl; a phase that isn't given takes no time."""
    times = {name: seconds.get(name, 0.0) for name in PHASES}
    return {
        "step": step,
        "generation": step - 1,
        "times": {**times, "step": sum(times.values()), "reward_total": 0.0},
        "engine": {"preemptions": 0},
        "loss": 0.1,
        "grad_norm": 1.0,
    }


def tried(lines: list[dict[str, Any]], completions: list[dict[str, Any]], code: int = 0, **found: Any) -> Tried:
    """A trial of a run of 100 steps."""
    given: dict[str, Any] = {"device": "a card", "kind": "cpu", "total_steps": 100, "steps": len(lines), **found}
    return Tried(Found(**given), lines, completions, code)
