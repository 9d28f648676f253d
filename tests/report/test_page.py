"""What the pages show of a run: lists and filters, a completion and its tests, tasks, steps, runs compared."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("plotly")
from starlette.testclient import TestClient
from tests.report.synthetic_run import HIDDEN, Shape, make_run

from ascent.alarms.over_run import judge_run
from ascent.report.page import run_library, runs_pages
from ascent.report.page.app import build_app
from ascent.report.page.run_library import RunLibrary, library
from ascent.tracking.packing import pack
from ascent.tracking.rollouts import read_rollouts

SHAPE = Shape(steps=40, prompts=4, completions=8, tasks=12, hollow_from=10, slow_step=30, stale_from=20)
Get = Callable[..., str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunLibrary]:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "a run", SHAPE)
    make_run(folder / "other", Shape(steps=12, prompts=2, seed=1, audit=False, stale_from=None, ended=False))
    opened = library(folder)
    for name in opened.paths():
        opened.open(name).rollouts.index.refresh()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def get(runs: RunLibrary) -> Iterator[Get]:
    with TestClient(build_app(runs, "t"), base_url="http://127.0.0.1", cookies={"ascent_report": "t"}) as client:

        def fetch(path: str, expected: int = 200, **query: object) -> str:
            answer = client.get(f"{path}?{urlencode(query)}" if query else path)
            assert answer.status_code == expected, answer.text
            return answer.text

        yield fetch


def total(page: str) -> int:
    found = re.search(r'data-total="(\d+)"', page)
    assert found is not None
    return int(found[1])


def rows(page: str) -> int:
    return page.count("<tr>") - 1


def links(page: str, part: str) -> list[str]:
    return [link.replace("&amp;", "&") for link in re.findall(r'href="([^"]+)"', page) if part in link]


ROLLOUTS = "/runs/a%20run/rollouts"


def test_filters_count_what_the_files_hold(runs: RunLibrary, get: Get) -> None:
    kept = read_rollouts(runs.paths()["a run"] / "rollouts")
    hollow = [row for row in kept if row["audit_outcomes"] and row["audit_outcomes"].count("passed") < HIDDEN / 2]
    solved = [row for row in kept if row["audit_outcomes"] and row["audit_outcomes"].count("passed") == HIDDEN]
    assert len(kept) == 40 * 4 * 8
    assert 0 < len(hollow) < len(solved)
    expected = {
        ("of", "training"): len(kept),
        ("outcome", "hollow"): len(hollow),
        ("outcome", "solved"): len(solved),
        ("outcome", "unsolved"): len(kept) - len(solved),
        ("outcome", "broken"): sum(not row["compiled"] for row in kept),
        ("outcome", "error"): sum("error" in row["outcomes"] for row in kept),
        ("task", "linear/0003"): sum(row["task_id"] == "linear/0003" for row in kept),
        ("stale", "yes"): sum(row["weight_version"] < row["step"] - 1 for row in kept),
        ("finish", "length"): sum(row["finish_reason"] == "length" for row in kept),
        ("marker", "visible_inputs"): sum("visible_inputs" in row["markers"] for row in kept),
        ("first", "35"): sum(row["step"] >= 35 for row in kept),
        ("last", "3"): sum(row["step"] <= 3 for row in kept),
        ("kept", "no"): 0,
        ("of", "before"): 0,
        ("q", "total += "): sum("total += " in row["completion"] for row in kept),
        ("q", "TOTAL += "): 0,
        ("q", "def F(X"): 0,
        ("q", "write a function"): 0,
    }
    for (name, value), count in expected.items():
        assert total(get(ROLLOUTS, **{name: value})) == count, (name, value)
    assert total(get(ROLLOUTS)) == len(kept)
    assert total(get(ROLLOUTS, q="write a function", field="prompt")) == len(kept), "in either case without capitals"
    both = total(get(ROLLOUTS, outcome="hollow", task="linear/0003", q="return"))
    assert both == sum(row["task_id"] == "linear/0003" for row in hollow)


@pytest.mark.parametrize(
    "query",
    [
        {"first": "x", "last": "-1", "page": "0", "sort": "'; DROP TABLE completions; --"},
        {"task": "' OR 1=1 --"},
        {"of": "'"},
        {"marker": "%"},
        {"q": "%"},
        {"q": "("},
        {"q": "\\"},
        {"page": "999999999"},
        {"first": "٣", "page": "²"},
        {"outcome": "nonsense", "kept": "maybe", "field": "logps"},
    ],
)
def test_odd_filters_do_no_harm(get: Get, query: dict[str, str]) -> None:
    get(ROLLOUTS, **query)
    assert total(get(ROLLOUTS)) == 1280


def test_sorting_and_paging_give_every_row_once(get: Get) -> None:
    seen: list[str] = []
    for page in range(1, 27):
        seen += links(get(ROLLOUTS, page=page), "/completion?")
    assert len(seen) == len({link.split("&")[0] for link in seen}) == 1280
    steps = [int(value) for value in re.findall(r'<td class="num">(\d+)</td>\s*<td class="id">', get(ROLLOUTS))]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == 40


def test_from_a_list_one_walks_through_it(get: Get) -> None:
    """The links are whole addresses: what stands before and after is what the list has there."""
    first = links(get(ROLLOUTS, outcome="hollow", sort="oldest"), "/completion?")
    page = get(first[0])
    assert 'rel="prev"' not in page
    for link in first[1:4]:
        following = [each for each in links(page, "/completion?") if "at=" in each]
        assert link in following
        page = get(link)
    assert 'rel="prev"' in page
    assert links(page, "rollouts?") == ["/runs/a%20run/rollouts?outcome=hollow&sort=oldest"]


def test_a_completion_shows_each_test_beside_its_outcome(get: Get) -> None:
    page = get(links(get(ROLLOUTS, outcome="hollow", task="linear/0000"), "/completion?")[0])
    assert re.search(r"Passes all visible tests but only \d of 6 hidden ones\.", page)
    table = page.split('class="list tests"')[1].split("</table>")[0]
    plain = " ".join(re.sub(r"<[^>]+>", " ", table).split())
    assert "f(1, 2) 0 passed" in plain  # 1 * 1 + 2 * 2 - 5
    assert "hidden audit f(10, 7) 19 failed" in plain
    assert "stale by 1: sampled with the weights of step" in page


def test_freshness_is_told(get: Get) -> None:
    page = get(links(get(ROLLOUTS, first=5, last=5), "/completion?")[0])
    assert "fresh: sampled with the weights of step 4, for step 5" in page


def test_tokens_have_texts_and_log_probabilities(get: Get) -> None:
    page = get(links(get(ROLLOUTS, outcome="solved"), "/completion?")[0])
    strip = page.split('class="tokens"')[1].split("</div>")[0]
    assert re.search(
        r'title="0: id \d+, sampler -[\d.]+, trainer -[\d.]+, difference [+-][\d.]+, weights of step \d+">d</span>',
        strip,
    )


def test_a_group_folds_what_is_equal_and_compares_two(get: Get) -> None:
    completion = get(links(get(ROLLOUTS, outcome="hollow"), "/completion?")[0])
    address = links(completion, "/group?")[0]
    page = get(address)
    cards = page.count('<article class="card">')
    assert f"8 completions, {cards} distinct programs" in page
    assert len(links(page, "/completion?")) == 8
    assert 'class="diff"' not in page
    assert 'class="diff"' in get(f"{address}&first=1&second=2")
    assert 'class="diff"' not in get(f"{address}&first=1&second=99")


def test_the_task_that_got_worse_stands_first(get: Get) -> None:
    page = get("/runs/a%20run/tasks")
    assert links(page, "/task?")[0].endswith(("id=linear/0000", "id=linear/0001"))
    lost = get("/runs/a%20run/tasks", kind="lost")
    assert {link.rsplit("=", 1)[1] for link in links(lost, "/task?")} == {"linear/0000", "linear/0001"}
    task = get("/runs/a%20run/task", id="linear/0000")
    assert "Which tests its last completions fail" in task
    assert "f(100, 1)" in task


def test_the_slow_step_says_why(get: Get) -> None:
    page = get("/runs/a%20run/performance")
    assert links(page, "step?")[0].endswith("number=30")
    step = get("/runs/a%20run/step", number=30)
    assert "Most of the difference is sampling" in step
    assert "preemptions" in step
    assert len(links(step, "/completion?")) == 10
    assert "usual is" in get("/runs/a%20run/step", number=12)
    assert "no such step" in get("/runs/a%20run/step", number=4000)


def test_runs_are_listed_and_compared(get: Get) -> None:
    listed = get("/")
    assert listed.index("other") < listed.index("a run"), "what was written to last stands first"
    page = get("/compare?run=a+run&run=other")
    assert "trainer.learning_rate" in page
    assert "1e-06" in page
    assert "Tick at least two" in get("/compare?run=other")
    get("/compare?run=none", 404)


def test_what_is_not_there_is_told(get: Get) -> None:
    assert "completion x/1/0/0" in get("/runs/a%20run/completion", 404, id="x/1/0/0")
    assert "group nothing" in get("/runs/a%20run/group", 404, id="nothing")
    assert "task nothing" in get("/runs/a%20run/task", 404, id="nothing")
    assert "/nowhere" in get("/nowhere", 404)


def test_pages_speak_chinese(get: Get) -> None:
    for path in ("/", "/runs/a%20run/", ROLLOUTS, "/runs/a%20run/tasks", "/runs/a%20run/performance", "/nowhere"):
        page = get(f"{path}?language=zh", 404 if path == "/nowhere" else 200)
        assert '<html lang="zh">' in page
        assert "快捷键" in page
    get("/?language=en")


def test_new_generations_come_in_and_resumes_take_away(tmp_path: Path) -> None:
    make_run(tmp_path / "run", Shape(steps=6, prompts=2))
    late = tmp_path / "late"
    late.mkdir()
    for name in ("000004-rank0.parquet", "000005-rank0.parquet"):
        shutil.move(tmp_path / "run" / "rollouts" / name, late / name)
    opened = library(tmp_path / "run").open("run")
    index = opened.rollouts.index
    index.refresh()

    def count() -> int:
        return opened.rollouts.counts()["completions"]

    assert count() == 4 * 16
    version = index.version
    for path in late.iterdir():
        shutil.move(path, tmp_path / "run" / "rollouts" / path.name)
    index.refresh()
    assert count() == 6 * 16
    assert index.version > version
    (tmp_path / "run" / "rollouts" / "000005-rank0.parquet").unlink()
    index.refresh()
    assert count() == 5 * 16
    opened.drop_index()


def test_packed_and_unpacked_show_the_same(tmp_path: Path) -> None:
    make_run(tmp_path / "run", Shape(steps=70, prompts=6, hollow_from=5))
    opened = library(tmp_path / "run").open("run")
    index = opened.rollouts.index
    index.refresh()
    question = "SELECT * EXCLUDE (file, row) FROM completions ORDER BY sample_id"
    before = index.rows(question)
    texts = opened.rollouts.with_texts(index.rows("SELECT * FROM completions ORDER BY sample_id"))
    alarms = judge_run(tmp_path / "run").alarms
    pack(tmp_path / "run")
    judged = judge_run(tmp_path / "run").alarms
    assert [replace(alarm, evidence=()) for alarm in judged] == [replace(alarm, evidence=()) for alarm in alarms]
    assert len(judged[0].evidence) == len(alarms[0].evidence) > 0
    index.refresh()
    assert [file.file.name for file in index.files.values()] == ["packed-000000-000069.parquet"]
    assert index.rows(question) == before
    after = opened.rollouts.with_texts(index.rows("SELECT * FROM completions ORDER BY sample_id"))
    assert [row["program"] for row in after] == [row["program"] for row in texts]
    opened.drop_index()


def test_a_single_run_is_a_library_too(runs: RunLibrary) -> None:
    path = runs.paths()["other"]
    single = library(path)
    assert single.single
    with TestClient(build_app(single, "t"), base_url="http://127.0.0.1", cookies={"ascent_report": "t"}) as client:
        assert client.get("/runs/other/").status_code == 200
        assert client.get(f"/runs/{quote('a run')}/").status_code == 404


def test_a_folder_of_ascent_evaluate_opens_too(tmp_path: Path) -> None:
    """No step, no metrics: completions of one evaluation, its line, and its tasks."""
    made = make_run(tmp_path / "evaluated", Shape(steps=1, prompts=2))
    for name in ("metrics.jsonl", "alarms.jsonl", "model"):
        path = made / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    line = {
        "evaluation": 0,
        "name": "evaluate",
        "step": 9,
        "greedy": 0.5,
        "sampled": 0.25,
        "pass@1": 0.25,
        "pass@5": 0.75,
    }
    line |= {"completions": 16, "seconds": 2.0, "results": {"a": {"greedy": 1.0, "sampled": 0.5, "samples": 2}}}
    (made / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
    with TestClient(
        build_app(library(made), "t"), base_url="http://127.0.0.1", cookies={"ascent_report": "t"}
    ) as client:
        assert "An evaluation without a training." in client.get("/runs/evaluated/").text
        shown = " ".join(re.sub(r"<[^>]+>", " ", client.get("/runs/evaluated/evaluation").text).split())
        assert "pass@1 25.0 % pass@5 75.0 %" in shown
        for page in ("rollouts", "tasks", "performance", "step?number=1"):
            assert client.get(f"/runs/evaluated/{page}").status_code == 200


def test_runs_are_compared_by_the_tasks_that_both_evaluated(tmp_path: Path) -> None:
    for name, rate in (("low", 0.25), ("high", 0.75)):
        made = make_run(tmp_path / name, Shape(steps=2, prompts=1))
        results = {f"t{place}": {"greedy": 1.0, "sampled": rate, "samples": 4} for place in range(40)}
        line = {"evaluation": 2, "name": "after", "step": 2, "results": {**results, f"of {name}": {"sampled": 1.0}}}
        with open(made / "evaluations.jsonl", "a") as file:
            file.write(json.dumps(line) + "\n")
    with TestClient(
        build_app(library(tmp_path), "t"), base_url="http://127.0.0.1", cookies={"ascent_report": "t"}
    ) as client:
        page = " ".join(re.sub(r"<[^>]+>", " ", client.get("/compare?run=low&run=high").text).split())
    assert re.search(r"against the first – \+50 \+\d+ … \+\d+ points, p [\d.e-]+ 40 tasks", page)


def test_the_state_of_a_run_is_told(tmp_path: Path) -> None:
    made = make_run(tmp_path / "run", Shape(steps=4, prompts=1, ended=False))
    lines = [{**json.loads(line), "total_steps": 100} for line in (made / "metrics.jsonl").read_text().splitlines()]
    (made / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def status() -> str:
        return library(made).open("run").state.status

    assert status() == "training"
    os.utime(made / "metrics.jsonl", (time.time() - 1700, time.time() - 1700))
    assert status() == "training", "half an hour may pass"
    os.utime(made / "metrics.jsonl", (time.time() - 1900, time.time() - 1900))
    assert status() == "stalled"
    slow = [{**line, "times": {"step": 600.0}} for line in lines]
    (made / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in slow))
    os.utime(made / "metrics.jsonl", (time.time() - 1900, time.time() - 1900))
    assert status() == "training", "six steps may pass"
    (made / "failure-rank0.log").write_text("Traceback")
    assert status() == "failed"
    (made / "model").mkdir()
    assert status() == "ended"


def test_a_folder_of_long_runs_is_listed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judging takes a while: beyond so many steps the list shows the alarms that a run kept, and opening it judges."""
    make_run(tmp_path / "run", Shape(steps=70, prompts=6, hollow_from=5))
    with TestClient(
        build_app(library(tmp_path), "t"), base_url="http://127.0.0.1", cookies={"ascent_report": "t"}
    ) as client:
        monkeypatch.setattr(runs_pages, "_MOST_JUDGED", 0)
        assert "1 critical" in client.get("/").text
        (tmp_path / "run" / "alarms.jsonl").unlink()
        monkeypatch.setattr(run_library, "_FRESH", 0.0)
        assert "1 critical" not in client.get("/").text
        assert "hollow-passes" in client.get("/runs/run/").text
