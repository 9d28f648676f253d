"""What GPRO can be set to, in a configuration and in Python."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pydantic
import pytest

from ascent import config
from ascent.algorithms.gpro import GPRO
from ascent.errors import InputError

OWN = {name for name in GPRO.model_fields if name != "name"}


def load(folder: Path, text: str, *overrides: str) -> tuple[Any, list[str]]:
    path = folder / "run.yaml"
    path.write_text("model: {path: builtin:starter}\n" + text, encoding="utf-8")
    loaded, notes = config.load(path, overrides)
    return loaded.algorithm, notes


def test_defaults() -> None:
    assert (GPRO().form, GPRO().strength, GPRO().gradient_penalty_radius) == ("share", 1.0, "auto")


def test_the_fields_own_weight_is_alpha_of_the_norm() -> None:
    preset = GPRO(gradient_penalty_weight=0.15)
    assert (preset.form, preset.strength) == ("norm", 0.15)
    assert "a thousandth" in preset.described()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"gradient_penalty_strength": -1.0}, "greater than or equal to 0"),
        ({"gradient_penalty_strength": float("nan")}, "finite"),
        ({"gradient_penalty_radius": 0}, "greater than 0"),
        ({"gradient_penalty_radius": -0.1}, "greater than 0"),
        ({"gradient_penalty_radius": float("inf")}, "finite"),
        ({"gradient_penalty_radius": "large"}, "auto"),
        ({"gradient_penalty_form": "cubed"}, "squared"),
        ({"gradient_penalty_form": "norm"}, "needs a gradient_penalty_strength"),
        ({"gradient_penalty_weight": 0.15, "gradient_penalty_strength": 0.2}, "contradicts"),
        ({"gradient_penalty_weight": 0.15, "gradient_penalty_form": "squared"}, "contradicts"),
        ({"gradient_penalty_every": 0}, "greater than or equal to 1"),
        ({"gradient_penalty_fraction": 0}, "greater than 0"),
        ({"gradient_penalty_fraction": 1.5}, "less than or equal to 1"),
        ({"gradient_penalty_parameters": "heads"}, "norms"),
        ({"gradient_penalty_wieght": 0.15}, "Extra inputs"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=said):
        GPRO(**settings)


def test_in_a_configuration_by_name_or_section(tmp_path: Path) -> None:
    assert load(tmp_path, "algorithm: gpro\n")[0] == GPRO()
    found, _ = load(tmp_path, "algorithm: {name: gpro, gradient_penalty_form: norm, gradient_penalty_strength: 5e-1}\n")
    assert (found.form, found.strength) == ("norm", 0.5)
    assert load(tmp_path, "", "algorithm=gpro", "algorithm.gradient_penalty_radius=1e-3")[0] == GPRO(
        gradient_penalty_radius=1e-3
    )


def test_under_trainer_its_settings_are_moved_with_a_note(tmp_path: Path) -> None:
    found, notes = load(tmp_path, "algorithm: gpro\ntrainer: {gradient_penalty_weight: 0.15}\n")
    assert found == GPRO(gradient_penalty_weight=0.15)
    assert any(
        "trainer.gradient_penalty_weight is taken for algorithm.gradient_penalty_weight" in note for note in notes
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trainer: {gradient_penalty_weight: 0.15}\n", r"a setting of algorithm=gpro, but the algorithm is grpo"),
        (
            "algorithm: {name: gpro, gradient_penalty_every: 2}\ntrainer: {gradient_penalty_every: 3}\n",
            r"algorithm.gradient_penalty_every=2 contradicts trainer.gradient_penalty_every=3",
        ),
        ("algorithm: {name: gpro, gradient_penalty_raduis: 1}\n", r"did you mean 'gradient_penalty_radius'"),
        ("algorithm: gpro\ntrainer: {gradient_penalty_wieght: 1}\n", r"did you mean 'gradient_penalty_weight'"),
        ("algorithm: {name: gpro, gradient_penalty_radius: -1}\n", r"greater than 0"),
        ("algorithm: {name: gpro}\ntrainer: {plain: true}\n", r"contradicts trainer.plain"),
        ("algorithm: grop\n", r"should be 'grpo' or 'gpro'"),
    ],
)
def test_what_a_configuration_is_told(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        load(tmp_path, text)


@pytest.mark.torch
def test_the_arguments_of_the_trainer_are_the_same_settings() -> None:
    from ascent import GPROConfig, GRPOConfig

    also = {field.name: field.default for field in fields(GPROConfig)}
    for field in fields(GRPOConfig):
        also.pop(field.name, None)
    assert also == {name: GPRO.model_fields[name].default for name in OWN}
