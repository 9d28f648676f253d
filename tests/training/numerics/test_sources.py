"""What is not finite where it arises: rewards, the sampler's log-probabilities, completions of token 0."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.far_engine import FarEngine
from tests.small_trainer import Memory, make_trainer
from tests.training.test_served import train

from ascent.rollout.token_arrays import as_logps, as_token_ids
from ascent.types import Completion

pytestmark = pytest.mark.torch
Policy = Callable[..., Path]
NAN, INF = math.nan, math.inf


def sources() -> tuple[Any, list[str]]:
    from ascent.training.numerics.sources import Sources

    told: list[str] = []
    return Sources(told.append), told


def test_rewards_beyond_the_numbers_of_float32_are_not_scored() -> None:
    import torch

    found, _ = sources()
    given = [0.5, None, NAN, INF, -INF, 1e39, -3e38, 2, True, np.float32("nan"), torch.tensor(INF)]
    kept = found.finite(given)
    assert kept == [0.5, None, None, None, None, None, -3e38, 2, True, None, None]
    assert found.take() == (6.0, 11.0)
    assert found.take() == (0.0, 0.0)


class Planted(FarEngine):
    """Completions with log-probabilities and tokens of one's choice."""

    def __init__(self, logps: list[float], token: int | None = None) -> None:
        super().__init__()
        self._logps, self._token, self._number = logps, token, 0

    def poll(self) -> list[Completion]:
        found = []
        for each in super().poll():
            self._number += 1
            ids = each.token_ids if self._token is None or self._number % 4 else as_token_ids([self._token] * 6)
            found.append(replace(each, logps=as_logps(self._logps), token_ids=ids))
        return found


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_log_probabilities_that_the_sampler_does_not_know_weigh_one(
    tiny_policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: float
) -> None:
    memory, trainer = train(tiny_policy(), tmp_path, Planted([value] * 6), max_steps=2)
    for step in memory.steps:
        assert step.metrics["numerics/logps_not_finite"] == 1.0
        assert step.metrics["sampling/importance_sampling_ratio/mean"] == pytest.approx(1.0)
        assert step.metrics["sampling/effective_sample_size"] == pytest.approx(1.0)
        assert step.metrics["sampling/masked"] == 0.0
        assert step.metrics["numerics/bad_step"] == 0.0
    told = capsys.readouterr().err
    assert told.count("ALARM: step 1: the sampler gave log-probabilities that are NaN or infinite") == 1
    assert "(100.0%; numerics/logps_not_finite in metrics.jsonl)" in told
    del trainer


def test_completions_of_token_0_are_counted(
    tiny_policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory, _ = train(tiny_policy(), tmp_path, Planted([NAN] * 6, token=0), max_steps=1)
    assert memory.steps[0].metrics["numerics/only_token_0"] == 0.25
    assert "ALARM: step 1: completions are of token 0 only" in capsys.readouterr().err


def test_one_token_0_may_be_an_end() -> None:
    from ascent.training.numerics.sources import only_token_0

    def of(*ids: int) -> Completion:
        return Completion("g", 0, (1,), as_token_ids(ids), as_logps(()), "stop", 0, 0.0, 0.0)

    assert only_token_0([of(), of(0), of(0, 0), of(0, 1), of(0, 0, 0)]) == 2


@pytest.mark.parametrize(
    ("value", "settings"),
    [
        *((value, {}) for value in (NAN, INF, -INF, 1e39)),
        *((value, {"max_resample_factor": 2.0}) for value in (NAN, INF)),
        (INF, {"plain": True}),
    ],
    ids=str,
)
def test_a_reward_that_is_not_finite_moves_nothing(
    tiny_policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: float, settings: dict[str, Any]
) -> None:
    """The completion is masked, the others of its group keep their advantages among themselves."""

    def reward(completions: list[str], **_: Any) -> list[float]:
        return [value if place == 1 else float(len(text) + place) for place, text in enumerate(completions)]

    memory = Memory()
    trainer = make_trainer(tiny_policy(), tmp_path, memory, reward=reward, max_steps=2, **settings)
    trainer.train()
    rows = [record for _, records, _ in memory.generations for record in records]
    told = capsys.readouterr().err
    for step in memory.steps:
        assert step.metrics["reward"] is not None
        assert math.isfinite(step.metrics["reward"])
        assert step.metrics["numerics/bad_step"] == 0.0
    if settings.get("plain"):
        return
    assert [row.dropped_why for row in rows].count("not scored by any reward function") >= 2
    for row in rows:
        assert row.advantage is None or abs(row.advantage) < 10
        assert (row.reward is None) == (row.dropped_why == "not scored by any reward function")
    assert memory.steps[0].metrics["numerics/rewards_not_finite"] == pytest.approx(1 / 8)
    assert told.count("ALARM: step 1: a reward function gave NaN or infinite rewards") == 1


def test_rewards_that_a_function_does_not_give_are_no_alarm(
    tiny_policy: Policy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def reward(completions: list[str], **_: Any) -> list[float | None]:
        return [None if place % 2 else float(place) for place, _ in enumerate(completions)]

    memory = Memory()
    make_trainer(tiny_policy(), tmp_path, memory, reward=reward, max_steps=1).train()
    assert memory.steps[0].metrics["numerics/rewards_not_finite"] == 0.0
    assert "ALARM" not in capsys.readouterr().err


def test_the_effective_sample_size() -> None:
    import torch

    from ascent.training.step.importance_weights import figures, weight_sums

    def of(weights: list[list[float]], counted: list[list[bool]]) -> dict[str, float]:
        return figures(weight_sums(torch.tensor(weights), torch.tensor(counted)).tolist())

    assert of([[1.0, 1.0]], [[True, True]]) == {"sampling/effective_sample_size": 1.0, "sampling/masked": 0.0}
    found = of([[2.0, 0.0, 9.0, 2.0]], [[True, True, False, True]])
    assert found["sampling/effective_sample_size"] == pytest.approx(16 / (3 * 8))
    assert found["sampling/masked"] == pytest.approx(1 / 3)
    assert of([[0.0]], [[True]])["sampling/effective_sample_size"] == 0.0
    assert of([[1.0]], [[False]]) == {}
