"""docs/scale.md says what the commands say: its tables, its examples and its picture."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from ascent.cli import main
from ascent.cluster.layout import lay_out
from ascent.cluster.nodes import by_hand
from ascent.cluster.places import Wanted
from ascent.cluster.refusal import DoesNotFitError
from ascent.cluster.simulation.asked import asked
from ascent.cluster.simulation.constants import defaults, of_card, spread
from ascent.cluster.simulation.picture import svg
from ascent.cluster.simulation.points import USUAL, Point, point
from ascent.memory.cards import card

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
NPU = defaults(card("910B3"))


def rows(heading: str) -> list[list[str]]:
    """The cells of the table that begins with this line."""
    lines = TEXT[TEXT.index(heading) :].splitlines()[2:]
    table = lines[: next(number for number, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_simulations_table() -> None:
    def told(each: Point) -> list[str]:
        shares = [f"{share:.1%}" if share < 0.1 else f"{share:.0%}" for share in (each.ddp_share, each.fsdp_share)]
        return [
            str(each.cards),
            f"{each.compute:.1f} s",
            *(share.replace("%", " %") for share in shares),
            *(f"{seconds:.1f} s" for seconds in (each.sampling, each.in_turn, each.beside, each.weights_collective)),
            *(f"{seconds:.0f} s" for seconds in (each.weights_http, each.weights_by_rounds, each.weights_relayed)),
        ]

    found = rows("| cards | forward and backward |")
    assert found == [told(point(USUAL, int(row[0]), NPU)) for row in found]


def test_the_table_of_a_batch_that_stays_the_same() -> None:
    found = rows("| cards | servers | sampling |")
    for row in found:
        each = point(replace(USUAL, batch=400_000), int(row[0]), NPU)
        training = each.compute + each.gathers
        assert row[1:] == [str(each.replicas), *(f"{s:.1f} s" for s in (each.sampling, training, each.beside))]


def test_the_table_of_where_communication_takes_over() -> None:
    found = rows("| cards | whole copies: tokens")
    made = [point(USUAL, int(row[0]), NPU) for row in found]
    assert found == [[str(each.cards), f"{each.half_step:.0f}", f"{each.half_pass:.0f}"] for each in made]


def test_figures_in_sentences() -> None:
    wide = [point(replace(USUAL, tensor_parallel=size), 64, NPU) for size in (1, 2, 4, 8)]
    said = "takes {:.1f} s with `-tp 1`, {:.1f} s with 2, {:.1f} s with 4 and {:.1f} s with 8"
    full = [point(replace(USUAL, sequences=count), 64, NPU).sampling for count in (16, 64, 85)]
    also = "take {:.1f} s with 16 sequences a server, {:.1f} s with 64, {:.1f} s with all 85"
    words = " ".join(TEXT.split())
    assert said.format(*(each.sampling for each in wide)) in words
    assert (
        "{:.0%}, {:.0%} and {:.0%} of decoding".format(*(each.tp_share for each in wide[1:])).replace("%", " %")
        in words
    )
    assert also.format(*full) in words
    crowd = point(USUAL, 1000, NPU.changed({"slow_share": 0.1}, "given"))
    assert f"{crowd.programs:.0f} programs a second take {crowd.judge_cores:.0f} cores" in words


def test_what_was_measured() -> None:
    found, checks = of_card(card("cpu:16GB"), None, ROOT / "benchmarks" / "results" / "cluster-simulation.json")
    words = " ".join(TEXT.split())
    assert (
        f"a delay of {found.inside_us:.0f} µs and {found.inside_gb_s:.2f} GB/s: {spread(checks)}".replace("%", " %")
        in words
    )
    told = {check.what.replace("step of whole copies", "step of DistributedDataParallel"): check for check in checks}
    for what, *figures in rows("| | predicted | measured |"):
        check = told[what.replace(" 4 MiB", " 4096 KiB").replace(" 64 MiB", " 65536 KiB")]
        error = f"{check.error:+.0%}".replace("%", " %").replace("-", "−")
        assert figures == [f"{check.predicted * 1e3:.1f} ms", f"{check.measured * 1e3:.1f} ms", error]


def test_the_example_of_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    command, _, output = re.search(r"\$ ascent (cluster plan.*?)(\n)(?=\d)(.*?)\n```", TEXT, re.DOTALL).groups()  # type: ignore[union-attr]
    words = shlex.split(command.replace("\\\n", ""))
    words[2] = str(ROOT / "examples" / "quickstart.yaml")
    assert main(words) == 0
    assert output.strip() in capsys.readouterr().out


def test_the_example_of_a_refusal() -> None:
    with pytest.raises(DoesNotFitError) as refused:
        lay_out(by_hand(["3x4:npu"]), Wanted(ranks=8, replicas=2, tensor_parallel=4))
    assert f"error: {refused.value}\n" in TEXT


def test_the_picture() -> None:
    assert (ROOT / "docs" / "scale-simulated.svg").read_text(encoding="utf-8") == svg(asked(None, card="910B3"))
