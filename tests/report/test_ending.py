"""The ending of a run: what is read, what is drawn, what is said."""

from __future__ import annotations

import io
import itertools
import json
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ascent.errors import InputError
from ascent.report.curve_svg import curve_svg
from ascent.report.ending import show_ending
from ascent.report.results import read_results, smoothed

SVG = "{http://www.w3.org/2000/svg}"


def task(name: str, family: str, greedy: float, sampled: float, completion: str = "\n    return 1") -> dict[str, Any]:
    return {
        "task_id": name,
        "family": family,
        "prompt": f"# {name}\ndef f(x):",
        "greedy": greedy,
        "sampled": sampled,
        "completion": completion,
    }


BEFORE = [
    task("a1", "lists", 0, 0.25, "\n    return wrong"),
    task("a2", "lists", 0, 0.5),
    task("b1", "loops", 1, 0.5),
    task("c1", "strings", 1, 1),
]
AFTER = [
    task("a1", "lists", 1, 1.0, "\n    return right"),
    task("a2", "lists", 1, 1.0),
    task("b1", "loops", 1, 0.75),
    task("c1", "strings", 0, 0.5),
]


def make_run(path: Path, rates: list[float | None], before: list[Any] | None, after: list[Any] | None) -> Path:
    path.mkdir()
    lines = [
        {"step": number, "reward": rate, "pass_rate": rate, "times": {"step": 2.0}}
        for number, rate in enumerate(rates, start=1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluations = {"before": before, "after": after}
    stored = {when: None if results is None else {"results": results} for when, results in evaluations.items()}
    (path / "evaluation.json").write_text(json.dumps(stored))
    return path


def ending(run: Path, width: int = 100, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    show_ending(run, Console(file=out, width=width, highlight=False))
    out.flush()
    return raw.getvalue().decode(encoding)


def test_rates_by_family_and_in_all(tmp_path: Path) -> None:
    said = ending(make_run(tmp_path / "run", [0.2, 0.4, 0.9], BEFORE, AFTER))
    rows = {line.split()[0]: line.split()[1:] for line in said.splitlines() if "->" in line}
    assert rows == {
        "lists": ["2", "0%", "->", "100%", "38%", "->", "100%"],
        "loops": ["1", "100%", "->", "100%", "50%", "->", "75%"],
        "strings": ["1", "100%", "->", "0%", "100%", "->", "50%"],
        "all": ["4", "50%", "->", "75%", "56%", "->", "81%"],
    }
    assert "3 steps in 6 s" in said
    assert "30 to 95% greedy" in said, "Wilson's interval of 3 in 4"


def test_most_improved_tasks_come_from_different_families_first(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.5], BEFORE, AFTER)
    best = read_results(run).most_improved()
    assert [change.after.task_id for change in best] == ["a1", "b1", "a2"], "c1 has not gained"
    said = ending(run)
    for text in ("# a1\n", "before, fails; 25% of its samples pass", "return wrong", "after, passes", "return right"):
        assert text in "\n".join(line.rstrip() for line in said.splitlines())
    assert "# c1" not in said


def test_nothing_improved_is_said(tmp_path: Path) -> None:
    assert "No held-out task improved." in ending(make_run(tmp_path / "run", [0.5], AFTER, AFTER))


@pytest.mark.parametrize(("before", "after"), [(None, None), (None, AFTER)])
def test_a_run_without_evaluations_ends_too(tmp_path: Path, before: Any, after: Any) -> None:
    said = ending(make_run(tmp_path / "run", [0.5, None, 0.7], before, after))
    assert ("Held-out tasks" in said) == (after is not None)
    assert "->" not in said
    assert "metrics.jsonl" in said
    assert "model/" not in said, "only what is there is named"


def test_memory_is_shown_beside_its_plan_with_what_it_found(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.5], None, None)
    kept: dict[str, Any] = {
        "schema": "ascent.memory/1",
        "plan": None,
        "measured": {},
        "compared": [{"phase": "training", "planned": 3 * 2**30, "measured": 2 * 2**30, "off": 0.5}],
        "findings": [{"name": "preemptions", "what": "the cache \x1b[2J was too small", "mend": "Raise it."}],
    }
    (run / "memory.json").write_text(json.dumps(kept))
    said = ending(run)
    assert "training 2.0 GiB 3.0 GiB +50%" in " ".join(said.split())
    assert "the cache \ufffd[2J was too small. Raise it." in said
    (run / "memory.json").write_text("{")
    with pytest.raises(InputError, match=r"memory\.json: can't be read"):
        ending(run)


@pytest.mark.parametrize("lora", [True, False])
def test_commands_of_the_advice_can_be_pasted(lora: bool, tmp_path: Path) -> None:
    """Whole on a line however narrow the terminal is, and right for names with blanks."""
    run = make_run(tmp_path / "a run", [0.5], None, None)
    assert "ascent generate" not in ending(run), "there is no model"
    (run / "model").mkdir()
    if lora:
        (run / "model" / "adapter_config.json").write_text("{}")
    said = ending(run, width=40)
    commands = [shlex.split(line.partition("ascent ")[2]) for line in said.splitlines() if " ascent " in line]
    assert ["generate", f"{run}/model", "--prompt", "PROMPT"] in commands
    assert ["export", str(run)] in commands
    assert ("LoRA adapter" in ending(run, width=300)) == lora


def test_columns_rise_with_the_pass_rate(tmp_path: Path) -> None:
    rates: list[float | None] = [number / 99 for number in range(100)]
    said = ending(make_run(tmp_path / "run", rates, None, None), width=50)
    plot = [line[7:].ljust(40) for line in said.splitlines() if line[:6].strip() in ("", "25%", "50%", "75%", "100%")]
    plot = [line for line in plot if set(line.strip()) & set("▁▂▃▄▅▆▇█")]
    heights = [sum(" ▁▂▃▄▅▆▇█".index(line[column]) for line in plot) for column in range(40)]
    assert heights == sorted(heights)
    assert heights[0] <= 1
    assert heights[-1] >= 63
    above = said.partition("What next")[0]  # what follows can be pasted, so it isn't broken
    assert all(len(line) <= 50 for line in above.splitlines() if not line.startswith(str(tmp_path)))


def test_completions_and_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    before = [task("a", "[bold]x[/bold]", 0, 0, "\x1b[2J\x1b]0;owned\x07\n    [red]return\udcff 1")]
    after = [task("a", "[bold]x[/bold]", 1, 1, "")]
    said = ending(make_run(tmp_path / "run", [0.5], before, after))
    assert "\x1b" not in said
    assert "[red]return\ufffd 1" in said
    assert "(nothing)" in said


def test_a_terminal_without_blocks_gets_ascii(tmp_path: Path) -> None:
    assert "#####" in ending(make_run(tmp_path / "run", [0.5] * 30, BEFORE, AFTER), encoding="ascii")


def test_the_picture_holds_every_step_and_both_evaluations(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a <run> & more", [0.0, 1.0, None, 0.5], BEFORE, AFTER)
    ending(run)
    root = ET.fromstring((run / "curve.svg").read_text(encoding="utf-8"))
    assert root.find(f"{SVG}title").text == "Pass rate of a <run> & more"  # type: ignore[union-attr]
    raw, smooth = (line.attrib["points"].split() for line in root.iter(f"{SVG}polyline"))
    heights = [float(point.split(",")[1]) for point in raw]
    assert len(heights) == 3, "a step that could not be judged has no place"
    assert heights[0] > heights[2] > heights[1], "up is better"
    assert len(smooth) == 4 - 1
    assert len(list(root.iter(f"{SVG}circle"))) == 4
    names = [element.text for element in root.iter(f"{SVG}text")]
    assert "held out, greedy 75%" in names
    assert "held out, sampled 81%" in names


def test_names_in_the_picture_do_not_overlap(tmp_path: Path) -> None:
    same = [task("a", "x", 1, 1)]
    svg = curve_svg(read_results(make_run(tmp_path / "run", [1.0], same, same)))
    places = [float(t.attrib["y"]) for t in ET.fromstring(svg).iter(f"{SVG}text") if "fill" in t.attrib]
    assert len(places) == 3
    assert all(later - earlier >= 15 for earlier, later in itertools.pairwise(places))


def test_a_cut_short_last_line_is_left_out_and_nonsense_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [0.1, 0.2], None, None)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "rew')
    assert [step.number for step in read_results(run).steps] == [1, 2]
    (run / "evaluation.json").write_text('{"after": {"results": [{"task": 1}]}}')
    with pytest.raises(InputError, match=r"evaluation\.json is not what a run writes"):
        read_results(run)


def test_smoothing_leaves_out_what_has_no_value() -> None:
    assert smoothed([0.0, None, 1.0, 1.0], 3) == [0.0, 0.5, 1.0, 1.0]
    assert smoothed([None, 0.5], 1) == [None, 0.5]
