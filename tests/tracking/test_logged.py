"""What of a step's record reaches trackers."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from ascent.training.records import logged
from ascent.training.records.recorder import StepRecord
from ascent.types import StepTimes


def record(device: dict[str, Any]) -> StepRecord:
    return StepRecord(1, 4, 0.5, 0, {"loss": 0.0}, StepTimes(1.0, 0, 0, 0, 1.0, 0, 0), None, device)


def test_peaks_of_each_phase_get_a_name_of_their_own() -> None:
    phases = {"update": {"allocated": 5, "reserved": 8}, "generate": {"allocated": 2, "reserved": 8}}
    assert logged.flat(record({"peak_bytes": 5, "phases": phases})) == {
        "device/peak_bytes": 5.0,
        "device/phases/update/allocated": 5.0,
        "device/phases/update/reserved": 8.0,
        "device/phases/generate/allocated": 2.0,
        "device/phases/generate/reserved": 8.0,
    }


def test_what_is_no_figure_stays_out_at_any_depth() -> None:
    device = {"findings": [{"name": "pressure"}], "phases": {"update": {"allocated": math.nan, "reserved": None}}}
    assert logged.flat(record(device)) == {}


def test_without_trackers_trl_logs_none_of_it() -> None:
    metrics: dict[str, list[float]] = defaultdict(list)
    logged.add(metrics, record({"phases": {"update": {"allocated": 5}}}), {}, trackers=False)
    assert not [name for name in metrics if name.startswith("device/")]
