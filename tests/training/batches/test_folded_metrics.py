"""TRL's metrics of several passes are those of one pass over all their rows."""

from __future__ import annotations

import math

import pytest

from ascent.training.batches.folded_metrics import Size, folded


def test_each_metric_is_folded_as_it_is_made() -> None:
    passes = [
        {"entropy": [2.0], "clip_ratio/low_min": [0.25], "clip_ratio/high_max": [0.5], "clip_ratio/low_mean": [0.1]},
        {"entropy": [5.0], "clip_ratio/low_min": [0.125], "clip_ratio/high_max": [0.75], "clip_ratio/low_mean": [0.4]},
    ]
    sizes = [Size(tokens=30, rows=4, fillings=0), Size(tokens=10, rows=1, fillings=0)]
    found = folded(passes, sizes, per_sequence=False)
    assert found["entropy"] == pytest.approx((30 * 2.0 + 10 * 5.0) / 40), "by tokens"
    assert (found["clip_ratio/low_min"], found["clip_ratio/high_max"]) == (0.125, 0.75), "the least and the largest"
    assert found["clip_ratio/low_mean"] == pytest.approx((30 * 0.1 + 10 * 0.4) / 40)
    found = folded(passes, sizes, per_sequence=True)
    assert found["clip_ratio/low_mean"] == pytest.approx((4 * 0.1 + 0.4) / 5), "one value a sequence"
    assert found["entropy"] == pytest.approx((30 * 2.0 + 10 * 5.0) / 40)


def test_rows_that_fill_a_pass_count_for_nothing() -> None:
    """A filling is never clipped, and has the weight 1 in VESPO's mean."""
    sizes = [Size(tokens=6, rows=2, fillings=0), Size(tokens=3, rows=1, fillings=1)]
    passes = [
        {"vespo/phi_seq_mean": [0.5], "cispo_clip_ratio": [1.0]},
        {"vespo/phi_seq_mean": [(0.2 + 1.0) / 2], "cispo_clip_ratio": [(1.0 + 0.0) / 2]},
    ]
    found = folded(passes, sizes, per_sequence=True)
    assert found["vespo/phi_seq_mean"] == pytest.approx((2 * 0.5 + 0.2) / 3)
    assert found["cispo_clip_ratio"] == pytest.approx(1.0)


def test_what_is_no_number_is_left_out() -> None:
    passes = [{"clip_ratio/low_min": [math.nan]}, {"clip_ratio/low_min": [0.5]}]
    sizes = [Size(tokens=0, rows=1, fillings=0), Size(tokens=4, rows=1, fillings=0)]
    assert folded(passes, sizes, per_sequence=False) == {"clip_ratio/low_min": 0.5}
    assert math.isnan(folded(passes[:1], sizes[:1], per_sequence=False)["clip_ratio/low_min"])
