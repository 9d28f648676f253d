"""The sums of all ranks as a step's line has them: figures of the whole generation, and columns by group.

What each is, docs/run-directory.md says.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ascent.training.records.signals.sums import GroupSums

_COUNTED = (  # sums that stand in the line as they are
    "completions",
    "clipped",
    "unscored",
    "unjudged",
    "passed_visible",
    "passers_known",
    "hollow",
    "hidden_known",
    "solved",
    "audits",
    "tampered",
    "forbidden",
    "timeouts",
    "tampering",
    "tampering_passed",
    "repeated",
    "marked",
    "ess_completions",
    "logps_not_finite",
    "sandbox_seconds",
)
_BY_GROUP = ("passed_visible", "passers_known", "hollow", "solved")


@dataclass(frozen=True, slots=True)
class Signals:
    """`figures` are flat, under the names of metrics.jsonl. `groups` are columns with an entry for each group, in the
    order of their numbers; None in one where it isn't known."""

    figures: Mapping[str, float | None]
    groups: Mapping[str, Sequence[Any]]


def merged(ranks: Sequence[Sequence[GroupSums]]) -> Signals | None:
    """What all ranks' parts say together; None of nothing. Groups may be spread over ranks."""
    groups: dict[str, GroupSums] = {}
    for part in (part for parts in ranks for part in parts):
        if part.group_id in groups:
            groups[part.group_id].take(part)
        else:
            groups[part.group_id] = part
    if not groups:
        return None
    ordered = [groups[group_id] for group_id in sorted(groups, key=_number)]
    figures = {f"signals/{name}": value for name, value in _figures(ordered).items()}
    return Signals(figures, _columns(ordered))


def _number(group_id: str) -> tuple[Any, ...]:
    """Groups in the order in which they were asked for: 12-2 before 12-10."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in group_id.split("-"))


def _figures(groups: Sequence[GroupSums]) -> dict[str, float | None]:
    total: defaultdict[str, float] = defaultdict(float)
    largest: dict[str, float] = {}
    for group in groups:
        for name, value in group.sums.items():
            total[name] += value
        for name, value in group.largest.items():
            largest[name] = max(largest.get(name, -math.inf), value)
    _settle_hollow(total)
    found: dict[str, float | None] = {"groups": float(len(groups))}
    found |= {name: value for name, value in total.items() if name in _COUNTED or name.startswith("marker/")}
    found |= _of_groups(groups)
    found["mean_length"], found["max_length"] = total["tokens"] / total["completions"], largest["length"]
    for name in ("visible", "hidden"):
        if total.get(f"{name}_known"):
            found[f"{name}_fraction"] = total[f"{name}_fraction"] / total[f"{name}_known"]
    if "reward" in largest:
        found["reward_min"], found["reward_max"] = -largest["-reward"], largest["reward"]
        found["length_reward_correlation"] = _correlation(groups)
    if total.get("ww"):
        found["ess"] = total["w"] ** 2 / (total["ess_completions"] * total["ww"])
    if total.get("solved_known", 0.0) < total.get("judged", 0.0) and not total.get("passers_known"):
        found.pop("solved", None)  # nobody looked at the hidden tests of those that pass all visible ones
    return found


def _settle_hollow(total: dict[str, float]) -> None:
    """Where no program passes, none is hollow; where some pass and hidden tests were not looked at, nobody knows."""
    if total.get("passed_visible") == 0:
        total["passers_known"], total["hollow"] = 0.0, 0.0


def _of_groups(groups: Sequence[GroupSums]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    shares = [len(group.programs) / group.sums["completions"] for group in groups]
    found["distinct_share"] = math.fsum(shares) / len(shares)
    if any("signal" in group.sums for group in groups):
        silent = [group.sums for group in groups if group.sums.get("signal") == 0]
        found["groups_without_signal"] = float(len(silent))
        if any("judged" in group.sums for group in groups):
            judged = [sums for sums in silent if sums.get("judged")]
            found["groups_all_pass"] = float(sum(sums["passed_all"] == sums["judged"] for sums in judged))
            found["groups_all_fail"] = float(sum(sums["passed_all"] == 0 for sums in judged))
    if any("passed_visible" in group.sums for group in groups):
        found["groups_passed_visible"] = float(sum(group.sums.get("passed_visible", 0) > 0 for group in groups))
    return found


def _correlation(groups: Sequence[GroupSums]) -> float | None:
    """Pearson's, of length and reward, over deviations from the group's means; None without any."""
    both = lengths = rewards = 0.0
    for sums in (group.sums for group in groups if group.sums.get("scored")):
        count = sums["scored"]
        both += sums["lr"] - sums["l"] * sums["reward"] / count
        lengths += max(0.0, sums["ll"] - sums["l"] ** 2 / count)
        rewards += max(0.0, sums["rr"] - sums["reward"] ** 2 / count)
    if lengths < 1e-9 or rewards < 1e-9:
        return None
    return max(-1.0, min(1.0, both / math.sqrt(lengths * rewards)))


def _columns(groups: Sequence[GroupSums]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        "task": [group.task_id for group in groups],
        "completions": [int(group.sums["completions"]) for group in groups],
        "scored": [int(group.sums.get("scored", 0)) for group in groups],
        "reward": [round(group.sums.get("reward", 0.0), 6) for group in groups],
        "signal": [_flag(group.sums.get("signal")) for group in groups],
        "distinct": [len(group.programs) for group in groups],
    }
    for group in groups:
        _settle_hollow(group.sums)
        for name in _BY_GROUP:
            value = group.sums.get(name)
            columns.setdefault(name, []).append(None if value is None else int(value))
    return columns


def _flag(sum_of_signal: float | None) -> int | None:
    return None if sum_of_signal is None else int(sum_of_signal > 0)
