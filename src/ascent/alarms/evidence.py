"""Completions that show what an alarm is about, taken from the rollout files of the steps that it rests on."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ascent.alarms.alarm import Alarm, Sample
from ascent.alarms.markers import TAMPERING, is_hollow, tampers
from ascent.alarms.repetition import repeats

MOST = 5  # samples of an alarm
LONGEST_TEXT = 4000  # characters of a completion or program
_FILES = 8  # of the newest generations, at most: a file holds all tokens of a generation
_GENERATION = re.compile(r"(\d+)-rank(\d+)\.parquet")
_COLUMNS = (
    "sample_id", "task_id", "step", "reward", "completion", "program", "outcomes", "visible_tests", "audit_outcomes",
    "markers", "completion_ids", "finish_reason", "sandbox_seconds", "trainer_logps", "logps",
)  # fmt: skip

Row: TypeAlias = Mapping[str, Any]


def evidence(alarm: Alarm, rollouts: Path) -> tuple[Sample, ...]:
    """Up to five samples, the plainest first; none for an alarm that no completion shows, or without rollout files."""
    worth = _WORTH.get(alarm.name)
    if worth is None or not rollouts.is_dir():
        return ()
    rows = [row for row in _rows(rollouts, alarm.since, alarm.step) if worth(row) > 0]
    found: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: -worth(row)):
        found.setdefault(row["program"] or row["completion"], row)  # five times the same would show less
    return tuple(map(_sample, list(found.values())[:MOST]))


def _rows(folder: Path, since: int, step: int) -> Iterator[Row]:
    """Rows of the newest generations that feed these steps, newest first."""
    import pyarrow.parquet as pq

    files = [path for path in folder.iterdir() if _GENERATION.fullmatch(path.name)]
    read = 0
    for path in sorted(files, key=lambda path: path.name, reverse=True):
        file = pq.ParquetFile(path)
        steps = file.read(["step"]).column("step").to_pylist()
        if not steps or min(steps) > step:
            continue
        if max(steps) < since or read >= _FILES:
            return
        read += 1
        yield from file.read([name for name in _COLUMNS if name in file.schema_arrow.names]).to_pylist()


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


_WORTH: Mapping[str, Callable[[Row], float]] = {
    "hollow-passes": _hollow,
    "reward-without-truth": _paid_without_truth,
    "tampering": _tampering,
    "no-signal": _any,
    "reward-falls": _any,
    "collapse": _any,
    "repetition": _repeated,
    "length": _cut,
    "slower": _slow,
    "unjudged": _unscored,
    "mismatch": _differs,
    "few-effective": _differs,
}
