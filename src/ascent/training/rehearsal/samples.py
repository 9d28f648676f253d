"""Ten completions to read, as unlike each other as there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ascent.report.page.visible_text import visible
from ascent.training.rehearsal.figures import passed

SHOWN = 10
_LINES, _WIDTH = 8, 140


@dataclass(frozen=True, slots=True)
class Sample:
    """A completion. Its texts are a model's, and may hold anything. `outcome` is in words."""

    task_id: str
    prompt: str
    completion: str
    outcome: str
    reward: float | None
    tokens: int

    def to_text(self, number: int) -> str:
        """Lines for a terminal, where what could steer it is written out."""
        reward = "no reward" if self.reward is None else f"reward {self.reward:.3g}"
        head = f"{number}. {visible(self.task_id)}: {self.outcome}, {reward}, {self.tokens} tokens"
        prompt, completion = (
            _indented(text, mark) for text, mark in ((self.prompt, "  > "), (self.completion, "  | "))
        )
        return "\n".join([head, *prompt, *completion])


def choose(rows: Sequence[Mapping[str, Any]], most: int = SHOWN) -> list[Sample]:
    """At most `most` of them: of each outcome (passed, failed, cut off, not judged) in turn, each of another task as
    long as there are some; of those of one outcome the best rewarded first."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: -(row["reward"] or 0.0)):
        kinds.setdefault(_kind(row), []).append(row)
    chosen: list[Mapping[str, Any]] = []
    while len(chosen) < most and any(kinds.values()):
        for left in kinds.values():
            if left and len(chosen) < most:
                tasks = {row["task_id"] for row in chosen}
                chosen.append(left.pop(next((at for at, row in enumerate(left) if row["task_id"] not in tasks), 0)))
    return [_sample(row) for row in chosen]


def _sample(row: Mapping[str, Any]) -> Sample:
    return Sample(
        task_id=row["task_id"],
        prompt=row["prompt"],
        completion=row["completion"],
        outcome=_outcome(row),
        reward=row["reward"],
        tokens=len(row["completion_ids"]),
    )


def _kind(row: Mapping[str, Any]) -> str:
    passes = passed(row)
    if passes:
        return "passed"
    if row["finish_reason"] == "length":
        return "cut off"
    return "not judged" if passes is None else "failed"


def _outcome(row: Mapping[str, Any]) -> str:
    outcomes = row["outcomes"]
    cut = ", cut off" if row["finish_reason"] == "length" else ""
    if passed(row) is None:
        return f"not judged by tests{cut}"
    compiled = "" if row["compiled"] else ", doesn't compile"
    return f"{sum(outcome == 'passed' for outcome in outcomes)} of {len(outcomes)} tests passed{compiled}{cut}"


def _indented(text: str, mark: str) -> list[str]:
    lines = visible(text).strip("\n").split("\n") if text.strip() else ["(nothing)"]
    shown = [f"{mark}{line if len(line) <= _WIDTH else f'{line[:_WIDTH]} ...'}" for line in lines[:_LINES]]
    return shown if len(lines) <= _LINES else [*shown, f"{mark}... {len(lines) - _LINES} more lines"]
