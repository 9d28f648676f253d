"""What is known of one local batch of completions while it is sampled and scored, and its records for tracking."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ascent.tracking.rollouts import RolloutRecord
from ascent.training.step.groups import LocalGroup
from ascent.types import Completion, Score


@dataclass(slots=True)
class BatchRecord:
    """Filled in the order of a generation: rows, groups, completions, texts, rewards, advantages."""

    rows: Sequence[dict[str, Any]]
    label: str  # names the generation in ids: "12", "eval-12", "greedy-12", "sampled-12"
    generation: int
    step: int
    rank: int
    groups: list[LocalGroup] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    prompts: Sequence[Any] = ()
    texts: Sequence[Any] = ()
    rewards: list[dict[str, float | None]] = field(default_factory=list)
    totals: list[float | None] = field(default_factory=list)
    advantages: list[float | None] = field(default_factory=list)
    scores: Sequence[Score] = ()  # of a reward function that gives verdicts; empty without one
    biased_by: tuple[str, ...] = ()  # sampling settings that bias its importance ratios
    dropped: int = 0  # completions that were sampled ahead for this batch and not asked for

    def records(self, run_name: str) -> list[RolloutRecord]:
        """One record a completion. Empty when the batch was not sampled by Ascent's engine."""
        places = [(group, index) for group in self.groups for index in range(group.request.n)]
        return [
            self._record(place, group, index, f"{run_name}/{self.label}/{self.rank}/{place}")
            for place, (group, index) in enumerate(places)
        ]

    def _record(self, place: int, group: LocalGroup, index: int, sample_id: str) -> RolloutRecord:
        completion = self.completions[place]
        score = self.scores[place] if self.scores else None
        verdict = score.verdict if score else None
        masked = self.totals[place] is None
        return RolloutRecord(
            sample_id=sample_id,
            group_id=group.request.group_id,
            task_id=str(self.rows[place].get("task_id", "")),
            generation=self.generation,
            step=self.step,
            rank=self.rank,
            index=group.offset + index,
            prompt=as_text(self.prompts[place]),
            completion=as_text(self.texts[place]),
            program=score.program if score else "",
            prompt_ids=completion.prompt_ids,
            completion_ids=completion.token_ids,
            logps=completion.logps,
            finish_reason=completion.finish_reason,
            weight_version=completion.weight_version,
            reward=self.totals[place],
            rewards=self.rewards[place],
            parts=score.parts if score else {},
            advantage=self.advantages[place],
            compiled=verdict.compiled if verdict else None,
            outcomes=[str(outcome) for outcome in verdict.outcomes] if verdict else [],
            error=(verdict.infrastructure_error or verdict.error) if verdict else None,
            sandbox_seconds=verdict.seconds if verdict else None,
            sandbox_level=verdict.level if verdict else None,
            kept=not masked,
            dropped_why="not scored by any reward function" if masked else None,
            sample_seconds=completion.finished_at - completion.submitted_at,
        )


def as_text(content: Any) -> str:
    """A prompt or completion as text: chat messages are joined with their roles."""
    if isinstance(content, str):
        return content
    if len(content) == 1 and content[0].get("role") == "assistant":
        return str(content[0].get("content") or "")
    return "\n".join(f"<{message.get('role')}>\n{message.get('content')}" for message in content)


def none_if_nan(value: float) -> float | None:
    """JSON and parquet have no NaN that everybody reads alike."""
    return None if math.isnan(value) else value
