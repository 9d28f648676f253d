"""Shapes are counted, and told as the cause of a slow step where they are one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.small_trainer import Memory, make_trainer

from ascent.training.records.shapes import Shapes

pytestmark = pytest.mark.torch


def steps(shapes: Shapes, *took: tuple[float, list[tuple[int, int]]]) -> list[dict[str, float]]:
    found = []
    for seconds, computed in took:
        for shape in computed:
            shapes.saw("update", shape)
        found.append(shapes.finish_step(seconds))
    return found


def test_each_shape_is_new_once_and_for_each_kind() -> None:
    shapes = Shapes(lambda text: None, built=True)
    shapes.saw("logps", (4, 64))
    counted = steps(shapes, (1.0, [(4, 64), (4, 64), (4, 128)]), (1.0, [(4, 64)]), (1.0, [(8, 64)]))
    assert [each["shapes/new"] for each in counted] == [3, 0, 1]
    assert [each["shapes/seen"] for each in counted] == [3, 3, 4]


def test_a_slow_step_is_explained_by_its_new_shapes() -> None:
    told: list[str] = []
    shapes = Shapes(told.append, built=True)
    steps(shapes, (30.0, [(4, 64)]), (9.0, [(4, 64)]), (9.5, [(4, 64)]))
    assert not told, "nothing is known yet of how long a step takes"
    steps(shapes, (9.0, [(4, 65)]), (40.0, [(4, 64)]))
    assert not told, "new but not slow, slow but not new"
    steps(shapes, (41.0, [(4, width) for width in range(66, 72)]))
    assert len(told) == 1
    for said in ("took 41.0 s, the last ones 9.5 s", "update 4 x 66", "and 2 more", "8 so far", "pad_to_multiple_of"):
        assert said in told[0]
    steps(shapes, (41.0, [(4, 66)]))
    assert len(told) == 1


def test_a_device_that_builds_nothing_for_a_shape_is_not_suspected() -> None:
    told: list[str] = []
    steps(Shapes(told.append, built=False), *[(1.0, [(1, 1)])] * 4, (9.0, [(2, 2)]))
    assert not told


def test_a_training_s_steps_have_their_shapes(tiny_policy: Callable[..., Path], tmp_path: Path) -> None:
    """Completions of one length: the first step sees all shapes, with gradients and without."""
    memory = Memory()
    settings = {"max_steps": 3, "generation_kwargs": {"min_new_tokens": 8}}
    trainer = make_trainer(tiny_policy(), tmp_path, memory, **settings)
    trainer.train()
    new = [record.metrics["shapes/new"] or 0.0 for record in memory.steps]
    kinds = {kind for kind, _ in trainer._shapes._seen}
    assert kinds == {"update", "logps"}
    assert new[0] > 1
    assert memory.steps[-1].metrics["shapes/seen"] == sum(new) == len(trainer._shapes._seen)
    assert new[0] == max(new)
