"""Made-up healthy runs raise no alarm; `benchmarks/alarms.py --series 1000` folds a thousand longer ones."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from planted.healthy_series import healthy_series

from ascent.alarms.fold import fold

STEPS = 300


def test_few_of_many_healthy_series_have_an_alarm() -> None:
    raised = {}
    for seed in range(5000, 5024):
        facts, lines, evaluations = healthy_series(seed, STEPS)
        alarms, state = fold(lines, facts, evaluations)
        assert {each.name for each in state.not_judged()} <= {"drift", "communication"}, (
            "all figures are there, but kl without beta"
        )
        if found := [(alarm.name, alarm.step, alarm.what) for alarm in alarms if alarm.level != "info"]:
            raised[seed] = found
    assert len(raised) <= 1, raised
