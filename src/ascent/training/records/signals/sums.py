"""Sums over the completions of each group, of a rank's part of a generation. Made of the records, beside the training.

A sum is there when at least one completion could tell it: what nobody knew is absent and not 0.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from ascent.alarms.markers import tampers
from ascent.alarms.repetition import repeats
from ascent.sandbox.types import Outcome
from ascent.tracking.rollouts import RolloutRecord

_TOLD_OUTCOMES = {"tampered": Outcome.TAMPERED, "forbidden": Outcome.FORBIDDEN, "timeouts": Outcome.TIMEOUT}
_LARGEST_LOG_WEIGHT = 20.0  # of a sequence's importance weight, either way


@dataclass(slots=True)
class GroupSums:
    """A rank's completions of one group. `sums` add up; of `largest` the largest counts. `programs` are digests of the
    distinct programs (completions where there are none)."""

    group_id: str
    task_id: str
    sums: dict[str, float] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)
    programs: set[bytes] = field(default_factory=set)

    def add(self, name: str, value: float = 1.0) -> None:
        """Add to a sum, which is there from now on."""
        self.sums[name] = self.sums.get(name, 0.0) + float(value)

    def top(self, name: str, value: float) -> None:
        """Keep the largest."""
        self.largest[name] = max(self.largest.get(name, -math.inf), float(value))

    def take(self, other: GroupSums) -> None:
        """Add another rank's part of the same group."""
        for name, value in other.sums.items():
            self.add(name, value)
        for name, value in other.largest.items():
            self.top(name, value)
        self.programs |= other.programs


def sums_of(records: Iterable[RolloutRecord]) -> list[GroupSums]:
    """The sums of each group of a rank's part of a generation."""
    found = []
    for (group_id, task_id), rows in groupby(records, lambda record: (record.group_id, record.task_id)):
        group = GroupSums(group_id, task_id)
        for record in rows:
            for count in _COUNTS:
                count(group, record)
        found.append(group)
    return found


def _of_all(group: GroupSums, record: RolloutRecord) -> None:
    length = len(record.completion_ids)
    group.add("completions")
    group.add("tokens", length)
    group.top("length", length)
    group.add("clipped", record.finish_reason == "length")
    group.add("repeated", repeats(record.completion_ids))
    if record.signal is not None:
        group.add("signal", record.signal)
    text = record.completion if record.visible_tests is None else record.program
    group.programs.add(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def _of_rewards(group: GroupSums, record: RolloutRecord) -> None:
    group.add("unscored", record.reward is None)
    if record.reward is None:
        return
    reward, length = record.reward, float(len(record.completion_ids))
    group.add("scored")
    group.add("reward", reward)
    group.top("reward", reward)
    group.top("-reward", -reward)
    for name, value in (("l", length), ("ll", length**2), ("rr", reward**2), ("lr", length * reward)):
        group.add(name, value)


def _of_verdicts(group: GroupSums, record: RolloutRecord) -> None:
    """Of a code reward: which tests are passed, and what is known of the hidden ones."""
    if record.visible_tests is None:
        return
    unjudged = all(outcome == Outcome.NOT_RUN for outcome in record.outcomes)
    group.add("unjudged", unjudged)
    group.add("sandbox_seconds", record.sandbox_seconds or 0.0)
    if unjudged:
        return
    visible, hidden = record.outcomes[: record.visible_tests], record.outcomes[record.visible_tests :]
    if not hidden and record.audit_outcomes is not None:
        hidden = record.audit_outcomes
    audited = bool(record.audit_outcomes)
    group.add("judged")
    group.add("audits", audited)
    group.add("passed_all", _all_pass(record.outcomes))
    for name, outcome in _TOLD_OUTCOMES.items():
        group.add(name, outcome in record.outcomes or outcome in (record.audit_outcomes or ()))
    aims_at_judging = tampers([*record.outcomes, *(record.audit_outcomes or ())], record.markers or ())
    group.add("tampering", aims_at_judging)
    group.add("tampering_passed", aims_at_judging and _all_pass(record.outcomes))
    if visible:
        group.add("visible_known")
        group.add("visible_fraction", _fraction(visible))
        group.add("passed_visible", _all_pass(visible))
    if hidden:
        group.add("hidden_known")
        group.add("hidden_fraction", _fraction(hidden))
    if visible and _all_pass(visible) and hidden:
        group.add("passers_known")
        group.add("hollow", _fraction(hidden) < 0.5)
    if (solved := _solves(visible, hidden, nothing_hidden=_is_empty(record.audit_outcomes))) is not None:
        group.add("solved_known")
        group.add("solved", solved)


def _solves(visible: Sequence[str], hidden: Sequence[str], *, nothing_hidden: bool) -> bool | None:
    if not _all_pass(visible) and visible:
        return False
    return _all_pass(hidden) if hidden else True if nothing_hidden else None


def _is_empty(outcomes: Sequence[str] | None) -> bool:
    return outcomes is not None and not outcomes


def _all_pass(outcomes: Sequence[str]) -> bool:
    return bool(outcomes) and all(outcome == Outcome.PASSED for outcome in outcomes)


def _fraction(outcomes: Sequence[str]) -> float:
    return sum(outcome == Outcome.PASSED for outcome in outcomes) / len(outcomes)


def _of_logps(group: GroupSums, record: RolloutRecord) -> None:
    """Of the trainer's log-probabilities, and of the sampler's where both are known."""
    if record.trainer_logps is None:
        return
    trainer_C = np.asarray(record.trainer_logps, np.float64)
    group.add("logps_not_finite", not np.isfinite(trainer_C).all())
    sampler_C = np.asarray(record.logps, np.float64)
    if len(sampler_C) != len(trainer_C) or not len(trainer_C):
        return
    difference_C = trainer_C - sampler_C
    known_C = difference_C[np.isfinite(difference_C)]  # vLLM could not score the others
    weight = math.exp(float(np.clip(known_C.sum(), -_LARGEST_LOG_WEIGHT, _LARGEST_LOG_WEIGHT)))
    for name, value in (("ess_completions", 1.0), ("w", weight), ("ww", weight**2)):
        group.add(name, value)


def _of_markers(group: GroupSums, record: RolloutRecord) -> None:
    if record.markers is None:
        return
    group.add("marked", bool(record.markers))
    for name in record.markers:
        group.add(f"marker/{name}")


_COUNTS: tuple[Callable[[GroupSums, Any], None], ...] = (_of_all, _of_rewards, _of_verdicts, _of_logps, _of_markers)
