"""The simulation: known figures, what must hold for any constants, files of constants, the picture."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascent.cli import main
from ascent.cluster.simulation import formulas
from ascent.cluster.simulation.asked import CARDS, asked
from ascent.cluster.simulation.constants import NAMES, Check, Constants, defaults, of_card, write_measured
from ascent.cluster.simulation.picture import svg
from ascent.cluster.simulation.points import USUAL, point
from ascent.errors import InputError
from ascent.memory.cards import card, cards

NPU = defaults(card("910B3"))


@pytest.mark.parametrize(
    ("count", "shares", "weights"),
    [
        (10, ("1.1%", "11%"), ("2.9", "8", "8")),
        (100, ("2.6%", "19%"), ("3.0", "48", "8")),
        (1000, ("6.7%", "21%"), ("3.1", "504", "8")),
    ],
)
def test_figures_made_apart_from_this_program(
    count: int, shares: tuple[str, str], weights: tuple[str, str, str]
) -> None:
    """7.6 B in bfloat16, half the cards train, 32k tokens each, servers of 4, 8 cards a node: to every digit told."""
    made = point(USUAL, count, NPU)
    assert f"{made.compute:.1f}" == "17.8"
    assert (f"{made.ddp_share:.1%}", f"{made.fsdp_share:.0%}") == shares
    assert f"{made.tp_share:.0%}" == "33%"
    found = (f"{made.weights_collective:.1f}", f"{made.weights_http:.0f}", f"{made.weights_relayed:.0f}")
    assert found == weights


def test_judging_cores() -> None:
    assert math.ceil(formulas.judging_cores(2000, NPU)) == 7
    slow = NPU.changed({"slow_share": 0.1, "slow_seconds": 5.0}, "given")
    assert formulas.judging_cores(2000, slow) == pytest.approx(1000, rel=0.01)


def test_one_rank_says_nothing_to_anybody() -> None:
    assert formulas.all_reduce(1e9, 1, 8, NPU) == 0
    assert formulas.gradients(1e9, 1, 8, NPU) == 0


def test_a_ring_on_one_node_is_the_textbooks() -> None:
    made = formulas.all_reduce(1e9, 8, 8, NPU)
    assert made == pytest.approx(2 * 7 / 8 * 1e9 / 137e9 + 2 * 7 * 5e-6)


positive = st.floats(0.01, 1e4)
constants = st.builds(
    Constants,
    **{name: positive for name in NAMES if not name.endswith("_share")},
    compute_share=st.floats(0.01, 1),
    memory_share=st.floats(0.01, 1),
    slow_share=st.floats(0, 1),
)


@settings(max_examples=150, deadline=None)
@given(constants, st.integers(8, 5000), st.integers(8, 5000))
def test_more_cards_never_talk_less(values: Constants, one: int, other: int) -> None:
    fewer, more = sorted((one, other))
    few, many = point(USUAL, fewer, values), point(USUAL, more, values)
    for made in (few, many):
        assert 0 <= made.ddp_share < 1
        assert 0 <= made.fsdp_share < 1
        assert 0 < made.tp_share < 1
        assert made.beside <= made.in_turn
        assert all(math.isfinite(value) and value >= 0 for value in (made.sampling, made.judge_cores, made.programs))
        assert made.weights_by_rounds <= made.weights_http * (1 + 1e-9)
        assert made.weights_relayed <= made.weights_http * (1 + 1e-9) or made.hosts * USUAL.payload < 2**30
    # to a node that isn't full a card adds its part of the ring; whole nodes add theirs
    if fewer % 16 == 0 and more % 16 == 0:
        assert few.ddp_share <= many.ddp_share * (1 + 1e-9)
        assert few.fsdp_share <= many.fsdp_share * (1 + 1e-9)
        assert few.weights_http <= many.weights_http


def test_communication_takes_over_where_a_batch_is_dealt_out_further() -> None:
    shares = [point(replace(USUAL, batch=400_000), count, NPU).fsdp_share for count in CARDS]
    assert shares == sorted(shares)
    assert shares[0] < 0.15
    assert shares[-1] > 0.5


@pytest.mark.parametrize("count", [8, 100, 1000])
def test_half_of_an_update_is_where_it_is_said_to_be(count: int) -> None:
    made = point(USUAL, count, NPU)
    whole = point(replace(USUAL, tokens=made.half_step), count, NPU)  # type: ignore[arg-type]
    assert whole.ddp_share == pytest.approx(0.5)
    for passes in (1, 3):
        tokens, most = made.half_pass * passes, made.half_pass * (1 + 1e-9)
        pieces = point(replace(USUAL, tokens=tokens, pass_tokens=most), count, NPU)  # type: ignore[arg-type]
        assert pieces.fsdp_share == pytest.approx(0.5)


def test_all_cards_that_train_and_are_one_card_have_a_speed() -> None:
    unknown = [name for name, each in cards().items() if each.trains and each.tflops <= 0]
    assert unknown == ["NVIDIA GeForce RTX 4090"]  # the name is also that of the 3090
    with pytest.raises(InputError, match="--constants FILE"):
        of_card(card("4090"))


def test_given_constants_go_before_measured_ones_and_these_before_the_defaults(tmp_path: Path) -> None:
    given, measured = tmp_path / "given.toml", tmp_path / "measured.json"
    given.write_text("inside_us = 7\ntflops = 0.1\n")
    write_measured(measured, {"inside_us": 9.0, "inside_gb_s": 2.0}, [Check("x", 1.0, 2.0)], {"kind": "cpu"})
    made, checks = of_card(card("cpu:16GB"), given, measured)
    assert (made.inside_us, made.inside_gb_s, made.between_us) == (7.0, 2.0, 12.0)
    assert made.sources["inside_us"].startswith("given")
    assert made.sources["inside_gb_s"].startswith("measured")
    assert made.sources["between_us"].startswith("assumed")
    assert checks[0].error == -0.5


@pytest.mark.parametrize(
    "text",
    [
        "inside_us = -1",
        "inside_gb_s = 0",
        "inside_gbs = 3",
        "inside_gb_s = 'fast'",
        "inside_gb_s = nan",
        "inside_gb_s = true",
        "compute_share = 35",
        "= 3",
        "[npu]\ninside_us = 3",
    ],
)
def test_constants_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "constants.toml"
    file.write_text(text)
    with pytest.raises(InputError, match="--constants"):
        of_card(card("910B3"), file)


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{",
        {"schema": "ascent.plan/1"},
        {"constants": {}},
        {"constants": {"inside_us": "5"}, "checks": [], "about": {"kind": "npu"}},
        {"constants": {"unknown": 5}, "checks": [], "about": {"kind": "npu"}},
        {"constants": {}, "checks": [{"what": "x", "predicted": 1, "measured": 0}], "about": {"kind": "npu"}},
        {"constants": {}, "checks": [{"what": "x"}], "about": {"kind": "npu"}},
        {"constants": {}, "checks": [], "about": {"kind": "cpu"}},
    ],
)
def test_measured_files_that_are_none_are_refused(tmp_path: Path, content: Any) -> None:
    file = tmp_path / "measured.json"
    if isinstance(content, dict):
        content = json.dumps({"schema": "ascent.cluster-constants/1"} | content)
    file.write_text(content)
    with pytest.raises(InputError, match="--measured"):
        of_card(card("910B3"), None, file)


@pytest.mark.parametrize("counts", [(8, 64, 1000), (8,)])
def test_the_picture_is_whole(counts: tuple[int, ...]) -> None:
    picture = ElementTree.fromstring(svg(asked(None, card="910B3", cards=counts)))
    lines = picture.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 7
    for line in lines:
        places = [tuple(map(float, place.split(","))) for place in line.attrib["points"].split()]
        assert len(places) == len(counts)
        assert all(0 <= x <= 940 and 80 <= y <= 351 for x, y in places)


def test_a_model_of_the_list_is_simulated_by_its_dimensions() -> None:
    made = asked("Qwen/Qwen2.5-72B-Instruct", card="H100", cards=[64], tensor_parallel=8)
    assert made.workload.parameters == pytest.approx(72.7e9, rel=0.01)
    assert made.points[0].compute > 9 * point(USUAL, 64, defaults(card("H100"))).compute


@pytest.mark.parametrize(
    "words",
    [
        ["--cards", "0"],
        ["--cards", "4"],
        ["--cards", "8,x"],
        ["--cards", "200000"],
        ["--training-share", "1"],
        ["-tp", "16"],
        ["-tp", "0"],
        ["--tokens", "0"],
        ["--tokens", "1", "--batch", "8"],
        ["--device", "no-such-card"],
        ["--constants", "/no/such/file"],
        ["--measured", "/no/such/file"],
        ["--svg", "/no/such/folder/x.svg"],
        ["no/such-model"],
    ],
)
def test_what_cannot_be_simulated_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "simulate", *words]) == 2
    assert "error:" in capsys.readouterr().err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "x.svg"
    assert main(["cluster", "simulate", "--cards", "8,1000", "--svg", str(picture), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "ascent.cluster-simulate/1"
    assert [each["cards"] for each in told["points"]] == [8, 1000]
    assert set(told["sources"]) == set(NAMES)
    assert picture.read_text().startswith("<svg")
