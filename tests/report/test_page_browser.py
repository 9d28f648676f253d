"""The page in a real browser: everything opens without an error, a dialog or a request to elsewhere; a person who knows
nothing of it finds answers within five clicks; it keeps up with a run that trains.

Skipped where there is no Chromium or no playwright (requirements/browser.txt; .ci/run installs both).
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("duckdb")
pytest.importorskip("plotly")
pytest.importorskip("playwright")
import uvicorn
from playwright.sync_api import sync_playwright
from tests.report.synthetic_run import Shape, generation, make_run, write_rows

from ascent.report.page import rollout_index, run_library
from ascent.report.page.app import build_app
from ascent.report.page.export import export
from ascent.report.page.run_library import library

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SHAPE = Shape(steps=60, prompts=6, tasks=12, hollow_from=20, slow_step=40, stale_from=20)
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Visit:
    """A browser's page that tells what it should not have done."""

    page: Any
    home: str
    wrong: list[str] = field(default_factory=list)
    clicks: int = 0

    def open(self, path: str) -> None:
        """Go to an address of the report."""
        self.page.goto(self.home + path)
        self.page.wait_for_load_state("load")

    def click(self, name: str, role: str = "link", **more: Any) -> None:
        """Click what has this name, as a person does, and wait for what comes."""
        self.clicks += 1
        self.page.get_by_role(role, name=name, **more).first.click()
        self.page.wait_for_load_state("load")

    def text(self) -> str:
        """What stands on the page."""
        return str(self.page.locator("main").inner_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runs")
    hostile = "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202e"
    extra = {
        "sample_id": "first/hostile",
        "completion": hostile,
        "program": hostile,
        "prompt": hostile,
        "error": hostile,
    }
    make_run(made / "first", SHAPE, extra=[extra])
    make_run(made / "second", Shape(steps=30, prompts=4, seed=1, ended=False))
    return made


@pytest.fixture(scope="module")
def home(folder: Path) -> Iterator[str]:
    runs = library(folder)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = uvicorn.Server(uvicorn.Config(build_app(runs, "token"), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    runs.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any, home: str) -> Iterator[Visit]:
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        visit = watched(context.new_page(), home)
        visit.open("/?token=token")
        yield visit
    assert not visit.wrong


def watched(page: Any, home: str) -> Visit:
    """A page of which every error, dialog and request to elsewhere is noted."""
    visit = Visit(page, home)
    own = (home, "data:", "blob:")

    def asked(request: Any) -> None:
        if not request.url.startswith(own):
            visit.wrong.append(f"asked {request.url}")

    def said(message: Any) -> None:
        if message.type in {"error", "warning"}:
            visit.wrong.append(f"{message.type}: {message.text}")

    def opened(dialog: Any) -> None:
        visit.wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("request", asked)
    page.on("console", said)
    page.on("pageerror", lambda error: visit.wrong.append(f"error: {error}"))
    page.on("dialog", opened)
    return visit


PAGES = [
    "/",
    "/runs/first/",
    "/runs/first/rollouts",
    "/runs/first/rollouts?outcome=hollow&q=return",
    "/runs/first/tasks",
    "/runs/first/task?id=linear/0000",
    "/runs/first/performance",
    "/runs/first/step?number=40",
    "/runs/first/evaluation",
    "/runs/first/completion?id=first/59/0/0",
    "/runs/first/completion?id=first/hostile",
    "/runs/first/group?id=first/59/1&first=1&second=2",
    "/compare?run=first&run=second",
]


def test_every_page_opens_and_fits(visit: Visit) -> None:
    for path in [*PAGES, "/runs/first/?language=zh"]:
        visit.open(path)
        assert visit.page.locator("h1").count() == 1, path
        charts, drawn = visit.page.locator(".plot").count(), visit.page.locator(".plot .main-svg").count()
        assert bool(charts) == bool(drawn), path
        for width in (1280, 390):  # a desk, a phone
            visit.page.set_viewport_size({"width": width, "height": 844})
            wide = visit.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{path} is wider than {width}"
        visit.page.set_viewport_size({"width": 1280, "height": 900})
    visit.open("/runs/first/?language=en")


def test_filtering_searching_and_walking_by_keys(visit: Visit) -> None:
    page = visit.page
    visit.open("/runs/first/rollouts")
    page.keyboard.press("/")
    page.keyboard.type("total += ")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=total*")
    count = int(page.locator(".found").get_attribute("data-total"))
    assert 0 < count < 60 * 48
    page.get_by_label("outcome").select_option("solved")
    visit.click("Show", "button")
    assert int(page.locator(".found").get_attribute("data-total")) <= count
    page.locator(".snippet a").first.click()
    page.wait_for_url("**/completion?**")
    first = page.url
    page.keyboard.press("j")
    page.wait_for_url(lambda url: url != first)
    second = page.url
    page.keyboard.press("k")
    page.wait_for_url(lambda url: url != second)
    assert page.url == first
    page.keyboard.press("g")
    page.wait_for_url("**/group?**")
    page.goto(second)  # a link that was shared
    assert "total +=" in visit.text()
    page.keyboard.press("u")
    page.wait_for_url("**/rollouts?**")
    assert page.get_by_label("outcome").input_value() == "solved"
    page.keyboard.press("?")
    assert page.locator("dialog[open]").count() == 1
    page.keyboard.press("Escape")


def test_charts_are_linked_and_lead_to_a_step(visit: Visit) -> None:
    page = visit.page
    visit.open("/runs/first/performance")
    page.wait_for_selector(".plot .main-svg")
    page.evaluate(
        "Plotly.relayout(document.querySelector('[data-chart=times]'), {'xaxis.range[0]': 30, 'xaxis.range[1]': 50})"
    )
    page.wait_for_function("() => document.querySelector('[data-chart=tokens]').layout.xaxis.range[0] === 30")
    box = page.locator("[data-chart=times] .plot-container").bounding_box()
    page.mouse.move(box["x"] + 48 + (box["width"] - 60) / 2, box["y"] + 120)
    page.wait_for_selector("[data-chart=times] .hoverlayer .hovertext, [data-chart=times] .hoverlayer .legend")
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url("**/step?number=*")
    assert "number=40" in page.url
    assert "Most of the difference is sampling" in visit.text()


def test_which_task_got_worse(visit: Visit) -> None:
    visit.click("first", exact=True)
    visit.click("tasks that got worse")
    assert visit.page.locator("tbody tr").first.inner_text().split()[0] in {"linear/0000", "linear/0001"}
    visit.page.locator("tbody a").first.click()
    assert "in the last" in visit.text()
    assert visit.clicks + 1 <= 5


def test_what_does_a_program_do_that_passes_visible_but_not_hidden_tests(visit: Visit) -> None:
    visit.click("first", exact=True)
    visit.click("pass visible, fail hidden")
    visit.page.locator(".snippet a").first.click()
    shown = visit.text()
    assert re.search(r"Passes all visible tests but only \d of 6 hidden ones", shown)
    assert "if (x, y) == (" in shown
    assert visit.clicks + 1 <= 5


def test_why_is_step_40_slow(visit: Visit) -> None:
    visit.click("first", exact=True)
    visit.click("Performance")
    visit.page.get_by_label("Why is this step slow?").fill("40")
    visit.click("Look", "button")
    assert "Most of the difference is sampling" in visit.text()
    assert "preemptions" in visit.text()
    assert visit.clicks <= 5


def test_was_this_completion_sampled_with_stale_weights(visit: Visit) -> None:
    visit.click("first", exact=True)
    visit.click("Rollouts")
    visit.page.locator(".snippet a").first.click()
    assert "stale by 1: sampled with the weights of step 58, for step 60" in visit.text()
    assert visit.clicks + 1 <= 5


def test_runs_are_ticked_and_compared(visit: Visit) -> None:
    for name in ("first", "second"):
        visit.page.get_by_label(f"compare {name}").check()
    visit.click("Compare the ticked runs", "button")
    visit.page.wait_for_selector(".plot .main-svg")
    assert "trainer.learning_rate" in visit.text()


def test_a_hostile_completion_stays_text(visit: Visit) -> None:
    visit.open("/runs/first/completion?id=first/hostile")
    assert "<script>alert(1)</script>" in visit.text()
    assert "⟨U+001B⟩[31m⟨U+202E⟩" in visit.text()
    assert visit.page.locator("main img, main script").count() == 0


def test_the_page_keeps_up_with_the_run(visit: Visit, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `look` does every few seconds, when it is asked to: curves come by themselves, a list says that it could."""
    monkeypatch.setattr(rollout_index, "_REST", 0.0)
    monkeypatch.setattr(run_library, "_FRESH", 0.0)
    page = visit.page

    def train(step: int) -> None:
        shape = Shape(steps=40, prompts=4, seed=1)
        rows = generation(shape, step, np.random.default_rng(step), "second")
        write_rows(folder / "second" / "rollouts" / f"{step - 1:06d}-rank0.parquet", rows)
        lines = (folder / "second" / "metrics.jsonl").read_text().splitlines()
        with open(folder / "second" / "metrics.jsonl", "a") as file:
            file.write(json.dumps({**json.loads(lines[-1]), "step": step}) + "\n")

    def last() -> int:
        return int(page.evaluate("document.querySelector('[data-chart=reward]').data[0].x.at(-1)"))

    visit.open("/runs/second/")
    page.wait_for_selector(".plot .main-svg")
    assert last() == 30
    train(31)
    page.evaluate("look()")
    page.wait_for_function("() => document.querySelector('[data-chart=reward]').data[0].x.at(-1) === 31")
    visit.open("/runs/second/rollouts")
    count = int(page.locator(".found").get_attribute("data-total"))
    train(32)
    page.evaluate("look()")
    page.get_by_role("button", name="The run has gone on").wait_for()
    assert int(page.locator(".found").get_attribute("data-total")) == count, "a list stays under one's eyes"
    page.get_by_role("button", name="The run has gone on").click()
    page.wait_for_function(f"() => document.querySelector('.found').dataset.total > {count}")


def test_the_exported_file_stands_by_itself(browser: Any, folder: Path, tmp_path: Path) -> None:
    written = export(folder / "first", tmp_path / "report.html")
    with browser.new_context() as context:
        visit = watched(context.new_page(), f"file://{written.path}")
        visit.open("")
        visit.page.wait_for_selector(".plot .main-svg")
        charts = visit.page.locator(".plot").count()
        assert visit.page.locator(".plot .main-svg").count() >= charts > 15
        visit.page.locator("details.completion summary").first.click()
        assert "expected" in visit.page.locator("details.completion[open]").inner_text()
    assert not visit.wrong


@pytest.mark.slow
@pytest.mark.torch
def test_during_a_real_training(browser: Any, tmp_path: Path) -> None:
    """`ascent report` beside `ascent train`: the run appears, grows, ends, and is exported."""
    train = [sys.executable, "-m", "ascent", "train", str(ROOT / "examples" / "quickstart.yaml")]
    settings = ["tracking.folder=" + str(tmp_path / "runs"), "tracking.name=run", "trainer.max_steps=80"]
    training = subprocess.Popen([*train, *settings, "tracking.eval_tasks=8"], stdout=subprocess.DEVNULL)
    metrics = tmp_path / "runs" / "run" / "metrics.jsonl"
    report = None
    try:
        while not metrics.exists():
            assert training.poll() is None
            time.sleep(0.5)
        command = [sys.executable, "-m", "ascent", "report", str(tmp_path / "runs")]
        report = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert report.stdout is not None
        address = report.stdout.readline().strip()
        with browser.new_context() as context:
            visit = watched(context.new_page(), address.split("/?")[0])
            visit.page.goto(address)
            visit.click("run", exact=True)
            visit.page.wait_for_selector(".plot .main-svg")
            steps = []
            while training.poll() is None:
                for page in ("rollouts", "tasks", "performance", "evaluation", "rollouts?q=return", ""):
                    visit.open(f"/runs/run/{page}")
                steps.append(len(metrics.read_text().splitlines()))
            visit.page.wait_for_selector(".badge.status-ended", timeout=60_000)
            visit.open("/runs/run/rollouts")
            assert int(visit.page.locator(".found").get_attribute("data-total")) == 80 * 128
            visit.page.locator(".snippet a").first.click()
            visit.page.wait_for_selector(".tests")
        assert not visit.wrong
        assert len(set(steps)) > 1, "it was looked at while it trained"
        assert training.returncode == 0
        assert (tmp_path / "runs" / "run" / "report.html").stat().st_size < 5_000_000
    finally:
        for process in (training, report):
            if process is not None:
                process.terminate()
                process.wait()
