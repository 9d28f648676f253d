"""The tables of docs/memory.md are what the plan says."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from ascent.cli import build_parser

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "benchmarks"))

import planner  # noqa: E402
import published_memory  # noqa: E402
from planning.drawing import draw  # noqa: E402
from planning.examples import anchor_rows, worked_rows  # noqa: E402

PAGE = (REPOSITORY / "docs" / "memory.md").read_text("utf-8")


def test_worked_examples_are_what_the_plan_says() -> None:
    for row in (*anchor_rows(), *worked_rows()):
        assert row in PAGE


def test_commands_of_the_page_are_accepted() -> None:
    block = PAGE.split("```")[1]
    lines = [line for line in block.splitlines() if line.startswith("ascent plan")]
    assert len(lines) >= 5
    for line in lines:
        build_parser().parse_args(shlex.split(line)[1:])


def test_published_figures_are_in_the_page_with_their_error() -> None:
    lines = published_memory.table()
    assert len(lines) - 2 >= 12
    for line in lines:
        assert line in PAGE


def test_published_figures_are_near_where_nothing_but_counting_is_needed() -> None:
    for figure in published_memory.figures():
        if figure["kind"] in ("weights", "tokens", "cache"):
            assert abs(published_memory.predicted(figure) / figure["published"] - 1) < 0.03, figure["what"]


def test_calibration_and_grid_share_no_model() -> None:
    def models(which: str) -> set[str]:
        return {str(sorted(drawn.config.items())) for drawn in draw(which, 1, 100)}

    assert not models("calibration") & models("grid")
    widths = {
        which: {drawn.config["hidden_size"] for drawn in draw(which, 1, 100)} for which in ("calibration", "grid")
    }
    assert not widths["calibration"] & widths["grid"]


def test_a_drawing_repeats() -> None:
    assert draw("grid", 1, 5) == draw("grid", 1, 5)
    assert draw("grid", 1, 5) != draw("grid", 2, 5)


def measured(file: str = "planner.jsonl") -> list[dict[str, object]]:
    """What `benchmarks/planner.py --keep` measured on the software NPU."""
    lines = (REPOSITORY / "benchmarks" / "results" / file).read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_the_plan_is_near_what_trainings_took() -> None:
    kept = measured()
    corrections = planner.calibrated([each for each in kept if each["set"] == "calibration"])
    judged = [planner.judge(each, corrections) for each in kept if each["set"] == "grid"]
    assert len(judged) >= 60
    assert sum(abs(each.off) <= 0.1 for each in judged) >= 0.9 * len(judged)
    assert all(each.off >= -0.05 for each in judged if each.verdict == "fits")
    for line in planner.by_kind(judged):
        assert line in PAGE


def test_the_plan_is_near_before_anything_is_calibrated() -> None:
    judged = [planner.judge(each, None) for each in measured() if each["set"] == "grid"]
    assert sum(abs(each.off) <= 0.1 for each in judged) >= 0.9 * len(judged)
    assert all(each.off >= -0.1 for each in judged)


def test_the_plan_of_a_second_gradient_is_near_what_trainings_took() -> None:
    judged = [planner.judge(each, None) for each in measured("planner-gpro.jsonl")]
    assert all(each.drawn.settings.trained.penalty is not None for each in judged)
    assert all(each.off >= -0.05 for each in judged)
    assert planner.by_kind(judged)[-1] in PAGE
