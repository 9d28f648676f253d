"""What is said of a bad step: every kind has its sentence and suspects, and the faults that it names exist."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from ascent.environment.known_faults import load
from ascent.training.numerics.finding import ORDER, Finding, Kind, gravest

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_says_what_and_whom_to_suspect(kind: Kind, dtype: str) -> None:
    found = Finding(kind, "model.layers.3.self_attn", "model.norm", 2, 1, 4096, 7.0, dtype, 2, 1, of_attention=True)
    assert len(found.sentence().splitlines()) == 1
    assert found.suspects()
    assert Finding(**found.to_json()) == found
    if kind in ("output", "gradient", "weight gradient"):
        assert "attn_implementation" in found.text()
        assert "2 NaN and 1 infinite of 4,096 numbers" in found.text()
        assert ("overflow of float16" in found.text()) == (dtype == "float16")
        assert ("npu_optim_level: O0" in found.text()) == (dtype != "float32")
    if kind == "nothing":
        assert "not reproducible" in found.sentence()
        assert "the device, its driver, or a race" in found.text()


def test_inputs_of_the_loss_have_suspects_of_their_own() -> None:
    inputs = ("advantages", "old_per_token_logps", "ref_per_token_logps", "importance_sampling_ratio", "another")
    assert len({Finding("input", name).suspects() for name in inputs}) == len(inputs)


def test_faults_that_are_named_exist() -> None:
    texts = " ".join(Finding(kind, "old_per_token_logps", dtype="float16").text() for kind in ORDER)
    named = set(re.findall(r"\b(nan-[a-z-]+)", texts))
    assert named
    assert named <= {fault.id for fault in load()}


def test_what_explains_the_others_is_chosen() -> None:
    assert set(ORDER) == set(get_args(Kind))
    found = [
        Finding("gradient", "a", rank=0),
        Finding("nothing", rank=1),
        Finding("output", "b", rank=3),
        Finding("output", "c", rank=2),
    ]
    assert gravest(found).where == "c"
    assert gravest([Finding("nothing", rank=1), Finding("nothing", rank=0)]).rank == 0
