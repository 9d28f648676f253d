"""What is known of one local batch of completions while it is sampled and scored, and its records for tracking."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ascent.tracking.rollouts import RolloutRecord
from ascent.tracking.texts import as_text
from ascent.training.batches.drawing.filled import Filled, completions_of, places_of, rows_of, scores_of
from ascent.training.batches.drawing.scored_group import ScoredGroup
from ascent.training.batches.signal import without_signal
from ascent.training.step.groups import LocalGroup
from ascent.types import Completion, Score

# why a completion is not trained on
OUT_OF_BOUNDS = "importance ratio out of bounds (vllm_importance_sampling_mode)"


@dataclass(slots=True)
class BatchRecord:
    """Filled in the order of a generation: rows, groups, completions, texts, rewards, advantages."""

    rows: Sequence[dict[str, Any]]  # of the completions
    label: str  # names the generation in ids: "12"; the evaluation: "eval-3", "eval-3-greedy", "eval-3-sampled"
    generation: int
    step: int
    rank: int
    evaluation: str | None = None  # which evaluation; None for what is trained on
    draws: str | None = None  # names the seeds where not the label does: evaluations differ by the policy alone
    first: int = 0  # how many completions of this label this rank has sampled before
    first_of_all: int = 0  # and all ranks
    groups: list[LocalGroup] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    prompts: Sequence[Any] = ()
    texts: Sequence[Any] = ()
    rewards: list[dict[str, float | None]] = field(default_factory=list)
    totals: list[float | None] = field(default_factory=list)
    advantages: list[float | None] = field(default_factory=list)
    scores: Sequence[Score] = ()  # of a reward function that gives verdicts; empty without one
    fetched: Sequence[dict[str, Any]] = ()  # what the dataloader gave; with dynamic sampling it is only counted
    dropped: int = 0  # completions that were sampled ahead for this batch and not asked for
    masked: dict[int, str] = field(default_factory=dict)  # by place: why a completion is not trained on
    trainer_logps: dict[int, Any] = field(default_factory=dict)  # by place: (C,) float32, padded, where computed
    spoiled_rewards: tuple[float, float] = (0.0, 0.0)  # that weren't finite, of how many
    silent: Any = None  # (B,) bool: those of groups whose scores are equal; None before they are scored
    filled: Filled | None = None  # with dynamic sampling: the groups that were drawn, sampled and scored already
    unchosen: BatchRecord | None = None  # those of them that were dropped

    @property
    def place(self) -> dict[str, Any]:
        """Where it stands in its generation or evaluation (`group_requests`)."""
        return {"draws": self.draws, "first": self.first_of_all}

    def fill(self, filled: Filled) -> None:
        """Take the groups that dynamic sampling chose."""
        self.filled = filled
        self._take_groups(filled.chosen)
        if filled.dropped:
            self.unchosen = replace(self, first=len(self.completions), filled=None, trainer_logps={})
            self.unchosen._take_groups([group for group, _ in filled.dropped])
            reasons = [why for group, why in filled.dropped for _ in group.completions]
            self.unchosen.advantages, self.unchosen.masked = [None] * len(reasons), dict(enumerate(reasons))

    def _take_groups(self, groups: Sequence[ScoredGroup]) -> None:
        self.rows, self.groups = rows_of(groups), places_of(groups)
        self.completions, self.scores = completions_of(groups), scores_of(groups)

    def take_rewards(
        self,
        prompts: Sequence[Any],
        texts: Sequence[Any],
        rewards_BF: Any,
        weights_F: Any,
        names: Sequence[str],
        *,
        each_function: bool = False,
    ) -> None:
        """Keep what each reward function gave (NaN for nothing), and their weighted sum, as TRL makes it. Dropped
        groups are whole: whether they have signal is seen here (`each_function`: see `without_signal`)."""
        totals = (rewards_BF * weights_F.to(rewards_BF.device)).nansum(dim=1)
        totals[rewards_BF.isnan().all(dim=1)] = math.nan
        self.prompts, self.texts = prompts, texts
        self.totals = [none_if_nan(total) for total in totals.tolist()]
        self.rewards = [
            {name: none_if_nan(value) for name, value in zip(names, row, strict=True)} for row in rewards_BF.tolist()
        ]
        if self.filled is not None and self.unchosen is not None:
            groups = [group for group, _ in self.filled.dropped]
            answers = [answer for group in groups for answer in group.answers]
            rewards = torch.cat([group.rewards.by_function for group in groups])
            prompts = [row["prompt"] for row in self.unchosen.rows]
            self.unchosen.take_rewards(prompts, answers, rewards, weights_F, names)
            size = len(groups[0].completions)
            self.unchosen.silent = without_signal(rewards, weights_F, size, each_function=each_function)

    def take_output(self, output: Mapping[str, Any]) -> None:
        """Keep what TRL made of the batch: advantages, what is masked, and the trainer's log-probabilities where the
        old policy's were computed."""
        self.advantages, self.masked = output["advantages"].tolist(), masked_places(output)
        logps_BC = output.get("old_per_token_logps")
        if logps_BC is not None:
            self.trainer_logps = dict(enumerate(logps_BC.detach().float().cpu().numpy()))

    def records(self, run_name: str) -> list[RolloutRecord]:
        """One record a completion, those of dropped groups last. Empty when the batch was not sampled by Ascent's
        engine."""
        places = [(group, index) for group in self.groups for index in range(group.request.n)]
        unknown = self.silent is None or self.evaluation is not None
        signals = [None] * len(places) if unknown else [not silent for silent in self.silent.tolist()]
        records = [
            self._record(place, group, index, f"{run_name}/{self.label}/{self.rank}/{self.first + place}", signal)
            for place, ((group, index), signal) in enumerate(zip(places, signals, strict=True))
        ]
        return records if self.unchosen is None else records + self.unchosen.records(run_name)

    def _record(self, place: int, group: LocalGroup, index: int, sample_id: str, signal: bool | None) -> RolloutRecord:
        completion = self.completions[place]
        score = self.scores[place] if self.scores else None
        verdict = score.verdict if score else None
        dropped_why = self._dropped_why(place)
        return RolloutRecord(
            sample_id=sample_id,
            group_id=group.request.group_id,
            task_id=str(self.rows[place].get("task_id", "")),
            evaluation=self.evaluation,
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
            advantage=self.advantages[place] if self.evaluation is None else None,
            compiled=verdict.compiled if verdict else None,
            outcomes=[str(outcome) for outcome in verdict.outcomes] if verdict else [],
            error=(verdict.infrastructure_error or verdict.error) if verdict else None,
            sandbox_seconds=verdict.seconds if verdict else None,
            sandbox_level=verdict.level if verdict else None,
            kept=dropped_why is None,
            dropped_why=dropped_why,
            sample_seconds=completion.finished_at - completion.submitted_at,
            weight_spans=completion.weight_spans or None,
            trainer_logps=self._trainer_logps(place),
            visible_tests=score.visible_tests if score and verdict else None,
            signal=signal,
        )

    def _trainer_logps(self, place: int) -> Any:
        logps_C = self.trainer_logps.get(place)
        return None if logps_C is None else logps_C[: len(self.completions[place].token_ids)]

    def programs(self) -> list[tuple[str, str]]:
        """The task and the program of each completion that has a verdict, those of dropped groups included."""
        found = [
            (str(row.get("task_id", "")), score.program)
            for row, score in zip(self.rows, self.scores, strict=False)
            if score.verdict is not None
        ]
        return found if self.unchosen is None else found + self.unchosen.programs()

    def _dropped_why(self, place: int) -> str | None:
        if self.evaluation is not None:
            return "sampled for an evaluation"
        return "not scored by any reward function" if self.totals[place] is None else self.masked.get(place)


def masked_places(output: Mapping[str, Any]) -> dict[int, str]:
    """Which rows of TRL's batch have no token in the loss, and why."""
    mask_BC = output["completion_mask"]
    found = dict.fromkeys(_empty(mask_BC), "truncated, or without a token (mask_truncated_completions)")
    ratio = output.get("importance_sampling_ratio")  # (B, C), or (B, 1) of whole sequences
    if ratio is not None:
        for place in _empty(mask_BC * ratio):
            found.setdefault(place, OUT_OF_BOUNDS)
    return found


def _empty(weight_BC: Any) -> list[int]:
    return [place for place, any_left in enumerate(weight_BC.ne(0).any(dim=1).tolist()) if not any_left]


def none_if_nan(value: float) -> float | None:
    """Parquet has no NaN that everybody reads alike."""
    return None if math.isnan(value) else value
