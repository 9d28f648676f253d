"""What `ascent bench` tells: table, JSON, picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

from ascent.bench.bound import Bound, StepCost
from ascent.bench.figures import Bench, Measured, OfTheBound, Repeat, Sampled, spread
from ascent.bench.picture import svg
from ascent.bench.report import Report
from ascent.rollout.engines.token_times import Latency

GIB = 2**30


def repeat(seconds: float, watts: float | None = None) -> Repeat:
    return Repeat(seconds, 0.5, 0, 0.25, Latency(0.2, 1.5), Latency(0.010, 0.020), 6 * GIB, 24 * GIB, watts)


FOUND = Bench(
    model='a<b>&"c"',
    device="a card",
    versions={"vllm": "0.31.0"},
    sampled=Sampled("as drawn", 2, (10, 20, 30, 40), 12),
    rows=2,
    stages=(
        Measured("static", {}, (repeat(4.0, 90.0), repeat(6.0, 110.0), repeat(5.0)), 3.0),
        Measured("dynamic", {}, (repeat(2.5),), 3.0),
        Measured("batching", {}, same_as="dynamic"),
        Measured("tuned", {"max_num_seqs": 4}, failed="memory: no room\n<for> the cache"),
    ),
    of_the_bound=OfTheBound(Bound(2.0, 2.25), StepCost({1: 0.01, 2: 0.015}, 0.0005), 9.0, 0.8),
    notes=("a note",),
)


def test_json_has_every_stage() -> None:
    told = json.loads(json.dumps(Report(FOUND).to_json(), allow_nan=False))
    assert told["schema"] == "ascent.bench/1"
    assert told["workload"]["lengths"] == {"min": 10, "median": 20, "p95": 40, "max": 40}
    static, dynamic, batching, tuned = told["stages"]
    assert static["seconds"] == [4.0, 6.0, 5.0]
    assert (static["sequences_per_second"], static["tokens_per_second"]) == (4 / 5, 100 / 5)
    assert static["first_token"] == {"median": 0.2, "p95": 1.5}
    assert static["memory"] == {"peak_bytes": 6 * GIB, "total_bytes": 24 * GIB, "percent": 25.0}
    assert static["power_watts"] == 100.0
    assert dynamic["power_watts"] is None
    assert batching == {"stage": "batching", "settings": {}, "same_as": "dynamic"}
    assert tuned["failed"].startswith("memory: no room")
    assert told["bound"]["step_seconds"] == {"1": 0.01, "2": 0.015}
    assert told["bound"]["dynamic_reached"] == 0.8


def test_text_tells_times_the_bound_and_what_failed() -> None:
    text = Report(FOUND).to_text()
    assert "40 (2.00 x static)" in text
    assert "as dynamic: the same settings" in text
    assert "failed: memory: no room <for> the cache" in text
    assert "25.0% (6.0 GiB)" in text
    assert "0.20, 1.50 s" in text
    assert "10, 20 ms" in text
    assert "2.00 s in any order, 2.25 s in this one; it took 2.50 s: 80% of the bound's speed" in text
    assert text.endswith("note: a note")
    assert not Report(FOUND).good
    assert Report(replace(FOUND, stages=FOUND.stages[:3])).good


def test_a_stage_that_is_another_one_has_its_figures() -> None:
    assert FOUND.times("batching", "static") == 2.0
    assert FOUND.times("tuned", "static") is None
    assert FOUND.times("padded", "static") is None


def test_the_picture_is_valid_and_shows_all_stages() -> None:
    root = ElementTree.fromstring(svg(FOUND))
    texts = [each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any('a<b>&"c"' in text for text in texts)
    assert {"static", "dynamic", "batching", "tuned", "not measured"} <= set(texts)
    assert "40 tokens/s (2.00 x static)" in texts
    bars = [float(each.attrib["width"]) for each in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert bars[0] * 2 == bars[2]  # static and dynamic, a memory bar between them


def test_a_picture_of_nothing_that_could_be_measured() -> None:
    nothing = replace(FOUND, stages=FOUND.stages[3:], of_the_bound=None)
    assert "not measured" in svg(nothing)
    assert "failed" in Report(nothing).to_text()


def test_how_lengths_lie() -> None:
    assert spread([5]) == {"min": 5, "median": 5, "p95": 5, "max": 5}
    assert spread(range(1, 101)) == {"min": 1, "median": 50, "p95": 95, "max": 100}
