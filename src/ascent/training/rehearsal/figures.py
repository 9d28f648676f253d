"""What a trial's completions and steps say of the run: signal, lengths and times, with how sure they are."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ascent.report.pass_rates import Rate, rate, t_quantile, wilson
from ascent.training.trial.found import Tried

Rows = Sequence[Mapping[str, Any]]  # as `tracking.rollouts.read_rollouts` gives them
PHASES = {
    "generate": "sampling",
    "reward_exposed": "waiting for rewards",
    "logps": "log-probabilities",
    "update": "update",
    "sync": "weights to the engine",
    "other": "other",
}
_HOLDS = 0.95  # of the completions, that a longer max_completion_length is to hold


@dataclass(frozen=True, slots=True)
class Signal:
    """Of all groups that were drawn. `silent` have scores that are all equal and teach nothing, of which `all_pass`
    pass as a whole; `low` to `high` is the 95 % interval of their share. `passed` is the pass rate of all, and
    `passed_first` that of the first generation, which the untrained policy sampled; None where no reward judges by
    tests. `unscored` completions have no reward."""

    groups: int
    completions: int
    silent: int
    low: float
    high: float
    all_pass: int
    passed: Rate | None
    passed_first: Rate | None
    unscored: int

    @property
    def share(self) -> float:
        """Of the groups that are silent."""
        return self.silent / self.groups if self.groups else 0.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of the completions. `cut` of `completions` ended at `allowed`, a share of `low` to `high` (95 %);
    `needed` tokens would hold 95 % of them, None where that can't be told. `finished` is the longest that ended by
    itself."""

    completions: int
    mean: float
    most: float  # 95 % of them have at most so many
    finished: int
    allowed: int
    cut: int
    low: float
    high: float
    needed: int | None

    @property
    def share(self) -> float:
        """Of the completions that were cut off."""
        return self.cut / self.completions if self.completions else 0.0


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a step with the 95 % interval of their mean (equal where only one was timed), the means of its phases,
    and what the whole run takes: `total` with `total_low` to `total_high`, its evaluations (`evaluations`) and its
    start included, checkpoints not."""

    timed: int
    step: float
    low: float
    high: float
    phases: Mapping[str, float]
    steps: int
    start: float
    evaluations: float
    total: float
    total_low: float
    total_high: float


def signal_of(rows: Rows) -> Signal:
    """Of the completions of whole groups."""
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["group_id"]].append(row)
    silent = [group for group in groups.values() if any(row["signal"] is False for row in group)]
    low, high = wilson(len(silent) / len(groups), len(groups)) if groups else (0.0, 1.0)
    return Signal(
        groups=len(groups),
        completions=len(rows),
        silent=len(silent),
        low=low,
        high=high,
        all_pass=sum(all(passed(row) for row in group) for group in silent),
        passed=_pass_rate(rows),
        passed_first=_pass_rate([row for row in rows if row["generation"] == 0]),
        unscored=sum(row["reward"] is None for row in rows),
    )


def _pass_rate(rows: Rows) -> Rate | None:
    by_task: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if (passes := passed(row)) is not None:
            by_task[row["task_id"]].append(float(passes))
    samples = sum(map(len, by_task.values()))
    return rate([statistics.fmean(each) for each in by_task.values()], samples=samples) if by_task else None


def passed(row: Mapping[str, Any]) -> bool | None:
    """Whether a completion passes all its tests; None where it wasn't judged by tests."""
    outcomes = row["outcomes"]
    if not outcomes or all(outcome == "not_run" for outcome in outcomes):
        return None
    return all(outcome == "passed" for outcome in outcomes)


def lengths_of(rows: Rows, allowed: int) -> Lengths | None:
    """Of the completions, which may have `allowed` tokens; None without any."""
    if not rows:
        return None
    tokens = sorted(len(row["completion_ids"]) for row in rows)
    ended = [len(row["completion_ids"]) for row in rows if row["finish_reason"] != "length"]
    cut = len(rows) - len(ended)
    low, high = wilson(cut / len(rows), len(rows))
    return Lengths(
        completions=len(rows),
        mean=statistics.fmean(tokens),
        most=tokens[min(len(tokens) - 1, math.ceil(_HOLDS * len(tokens)) - 1)],
        finished=max(ended, default=0),
        allowed=allowed,
        cut=cut,
        low=low,
        high=high,
        needed=_needed(ended, cut, allowed),
    )


def _needed(ended: Sequence[int], cut: int, allowed: int) -> int | None:
    """Tokens that would hold 95 % of the completions, if those that were cut off go on ending as often as completions
    did in the second half of what they may have: an exponential tail, whose rate is the ends in that half by the tokens
    sampled in it (the maximum likelihood of a censored sample)."""
    share = cut / (len(ended) + cut)
    if share <= 1 - _HOLDS:
        return allowed
    half = allowed / 2
    late = [length - half for length in ended if length > half]
    if not late:
        return None
    ends_a_token = len(late) / (sum(late) + cut * (allowed - half))
    return math.ceil(allowed + math.log(share / (1 - _HOLDS)) / ends_a_token)


def times_of(tried: Tried, *, evaluations: int) -> Times | None:
    """Of the timed steps; None where no step came to its end. The run samples `evaluations` completions beside."""
    lines = tried.timed
    if not lines:
        return None
    seconds = [line["times"]["step"] for line in lines]
    step = statistics.fmean(seconds)
    half = t_quantile(len(seconds) - 1) * statistics.stdev(seconds) / math.sqrt(len(seconds)) if lines[1:] else 0.0
    phases = {name: statistics.fmean(line["times"][name] for line in lines) for name in PHASES}
    sampled = len(tried.rows) * len(lines) / max(len(tried.lines), 1)
    a_completion = phases["generate"] * len(lines) / sampled if sampled else 0.0
    beside = evaluations * a_completion / max(tried.found.processes, 1) + tried.found.start_seconds
    steps = tried.found.total_steps
    low, high = max(0.0, step - half), step + half
    return Times(
        timed=len(lines),
        step=step,
        low=low,
        high=high,
        phases=phases,
        steps=steps,
        start=tried.found.start_seconds,
        evaluations=beside - tried.found.start_seconds,
        total=steps * step + beside,
        total_low=steps * low + beside,
        total_high=steps * high + beside,
    )
