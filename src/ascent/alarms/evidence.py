"""Completions that show what an alarm is about, taken from the rollout files of the steps that it rests on."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ascent.alarms.alarm import Alarm, Sample
from ascent.alarms.markers import TAMPERING, is_hollow, tampers
from ascent.alarms.repetition import repeats

MOST = 5  # samples of an alarm
LONGEST_TEXT = 4000  # characters of a completion or program
_GROUPS, _TOKEN_GROUPS = 8, 2  # row groups (one a small file), at most; reading all tokens takes a while
_AT_ONCE = 64  # rows
_GENERATION = re.compile(r"(?:packed-\d+-)?(\d+)(?:-rank\d+)?\.parquet")  # small, or many merged
_COLUMNS = (
    "sample_id", "task_id", "step", "reward", "completion", "program", "outcomes", "visible_tests", "audit_outcomes",
    "markers", "finish_reason", "sandbox_seconds",
)  # fmt: skip

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Look:
    """How much a row shows of an alarm, 0 for nothing, and which columns of tokens that takes."""

    worth: Callable[[Row], float]
    tokens: tuple[str, ...] = ()


def evidence(alarm: Alarm, rollouts: Path) -> tuple[Sample, ...]:
    """Up to five samples, the plainest first; none for an alarm that no completion shows, or without rollout files.

    Raises OSError for a file that can't be read, ValueError for one that is no rollout file.
    """
    look = _LOOKS.get(alarm.name)
    if look is None or not rollouts.is_dir():
        return ()
    best: list[tuple[float, Row]] = []
    shown: set[str] = set()
    for row in _rows(rollouts, alarm.since, alarm.step, look.tokens):
        worth, text = look.worth(row), row["program"] or row["completion"]
        if worth <= 0 or text in shown:  # five times the same would show less
            continue
        best = sorted([*best, (worth, row)], key=lambda each: -each[0])[:MOST]
        shown = {each["program"] or each["completion"] for _, each in best}
    return tuple(_sample(row) for _, row in best)


def _rows(folder: Path, since: int, step: int, tokens: Sequence[str]) -> Iterator[Row]:
    """Rows of the newest generations that feed these steps, newest first."""
    import pyarrow.parquet as pq

    files = [(int(match[1]), path) for path in folder.iterdir() if (match := _GENERATION.fullmatch(path.name))]
    left = _TOKEN_GROUPS if tokens else _GROUPS
    for _, path in sorted(files, reverse=True):
        file = pq.ParquetFile(path)
        columns = [name for name in (*_COLUMNS, *tokens) if name in file.schema_arrow.names]
        for group in reversed(range(file.num_row_groups)):
            steps = file.read_row_group(group, ["step"]).column("step").to_pylist()
            if not steps or min(steps) > step:
                continue
            if max(steps) < since or not left:
                return
            left -= 1
            for batch in file.iter_batches(_AT_ONCE, row_groups=[group], columns=columns):
                yield from batch.to_pylist()


def _sample(row: Row) -> Sample:
    return Sample(
        row["sample_id"],
        row["task_id"],
        row["step"],
        row["reward"],
        (row["completion"] or "")[:LONGEST_TEXT],
        (row["program"] or "")[:LONGEST_TEXT],
        tuple(row["outcomes"] or ()),
        tuple(row.get("audit_outcomes") or ()),
        tuple(row.get("markers") or ()),
    )


def _hollow(row: Row) -> float:
    visible = row.get("visible_tests") or 0
    hollow = is_hollow(row["outcomes"] or (), visible, row.get("audit_outcomes"))
    return (1.0 + 0.1 * len(row.get("markers") or ())) if hollow else 0.0


def _paid_without_truth(row: Row) -> float:
    outcomes = [*(row["outcomes"] or ()), *(row.get("audit_outcomes") or ())]
    missed = sum(outcome != "passed" for outcome in outcomes)
    return (row["reward"] or 0.0) if missed else 0.0


def _tampering(row: Row) -> float:
    names = row.get("markers") or ()
    if not tampers(row["outcomes"] or (), names):
        return 0.0
    return 2.0 if "tampered" in (row["outcomes"] or ()) else 1.0 + 0.1 * len(TAMPERING.intersection(names))


def _length(row: Row) -> float:
    return float(len(row["completion_ids"]))


def _cut(row: Row) -> float:
    return _length(row) + (10_000 if row["finish_reason"] == "length" else 0)


def _any(row: Row) -> float:
    return 1.0


def _repeated(row: Row) -> float:
    return _length(row) if repeats(row["completion_ids"]) else 0.0


def _slow(row: Row) -> float:
    return row["sandbox_seconds"] or 0.0


def _unscored(row: Row) -> float:
    return 1.0 if row["reward"] is None else 0.0


def _differs(row: Row) -> float:
    sampler, trainer = row.get("logps") or (), row.get("trainer_logps") or ()
    differences = [abs(one - other) for one, other in zip(sampler, trainer, strict=False)]
    mean = sum(differences) / len(differences) if differences else 0.0
    return mean if math.isfinite(mean) else 0.0


_TEXT = ("completion_ids",)
_BOTH = ("logps", "trainer_logps")
_LOOKS: Mapping[str, _Look] = {
    "hollow-passes": _Look(_hollow),
    "reward-without-truth": _Look(_paid_without_truth),
    "tampering": _Look(_tampering),
    "no-signal": _Look(_any),
    "reward-falls": _Look(_any),
    "collapse": _Look(_any),
    "repetition": _Look(_repeated, _TEXT),
    "length": _Look(_cut, _TEXT),
    "slower": _Look(_slow),
    "unjudged": _Look(_unscored),
    "mismatch": _Look(_differs, _BOTH),
    "few-effective": _Look(_differs, _BOTH),
}
