"""Run directories that are damaged, empty, of another release, unreadable or gone: a page that says so."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("duckdb")
pytest.importorskip("plotly")
from starlette.testclient import TestClient
from tests.report.synthetic_run import Shape, generation, make_run, table_of, write_rows

from ascent.errors import InputError
from ascent.report.page import run_pages
from ascent.report.page.app import build_app
from ascent.report.page.export import export
from ascent.report.page.growing_lines import GrowingLines
from ascent.report.page.run_library import RunLibrary, library
from ascent.report.page.security import POLICY
from ascent.tracking.rollouts import schema

SHAPE = Shape(steps=5, prompts=2, completions=4, hollow_from=2)
PAGES = ("", "rollouts", "tasks", "performance", "evaluation", "step?number=3", "rollouts?q=return")
NOBODY = 65534


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs" / "run", SHAPE)


@contextlib.contextmanager
def browsing(folder: Path) -> Iterator[Callable[..., str]]:
    """Every page must be a page: what it can't show it says."""
    opened = RunLibrary(folder)
    with TestClient(
        build_app(opened, "t"),
        base_url="http://127.0.0.1",
        cookies={"ascent_report": "t"},
        raise_server_exceptions=True,
    ) as client:

        def look(path: str, expected: int = 200) -> str:
            answer = client.get(path)
            assert answer.status_code == expected, answer.text
            return html.unescape(answer.text)

        yield look
    opened.close()


def all_pages(folder: Path) -> str:
    with browsing(folder) as look:
        pages = [look(f"/runs/run/{page}") for page in PAGES]
        look("/")
    return pages[0] + pages[1]


def test_a_parquet_file_that_was_cut(run: Path) -> None:
    path = run / "rollouts" / "000002-rank0.parquet"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (run / "rollouts" / "000003-rank0.parquet").write_bytes(b"")
    shown = all_pages(run.parent)
    assert "rollouts/000002-rank0.parquet" in shown
    assert "rollouts/000003-rank0.parquet" in shown
    assert "can't be read" in shown
    assert 'data-total="24"' in shown, "the other three are shown"


def test_parquet_whose_middle_is_damaged(run: Path) -> None:
    path = run / "rollouts" / "000002-rank0.parquet"
    content = bytearray(path.read_bytes())
    for place in range(40, len(content) - 4000, 7):
        content[place] ^= 0xFF
    path.write_bytes(content)
    shown = all_pages(run.parent)
    assert "rollouts/000002-rank0.parquet" in shown or 'data-total="40"' in shown


def test_half_a_json_line_and_lines_that_are_none(run: Path) -> None:
    with open(run / "metrics.jsonl", "a") as file:
        file.write('[1, 2]\n{"no": "step"}\nnot json\n{"step": "six"}\n{"step": 7, "times": "gone"}\n{"step": 8, "ti')
    shown = all_pages(run.parent)
    assert "left out what can't be understood: line 6, 7, 8" in shown
    assert "the last line has no end" in shown


@pytest.mark.parametrize(
    "content",
    ["", "null", "[]", "{", "\x00\x01", '{"before": 3}', '{"before": {"results": [1, {"greedy": "x"}, null]}}'],
)
def test_other_files_that_are_not_what_a_run_writes(run: Path, content: str) -> None:
    for name in ("evaluation.json", "config.yaml", "tasks.jsonl", "alarms.jsonl", "evaluations.jsonl"):
        (run / name).write_text(content)
    assert "run" in all_pages(run.parent)


def test_lines_that_lack_what_others_have(run: Path) -> None:
    huge = 10**400
    with open(run / "metrics.jsonl", "a") as file:
        file.write(
            json.dumps({"step": 6, "reward": huge, "times": None, "generation": "x", "signals/groups": []}) + "\n"
        )
        file.write(json.dumps({"step": huge, "total_steps": huge}) + "\n")
    with open(run / "evaluations.jsonl", "a") as file:
        file.write('{"name": {"a": 1}}\n{"name": "x", "step": NaN, "greedy": "y", "results": [1], "pass@1": null}\n')
    (run / "evaluation.json").write_text('{"after": {"results": [{"task_id": 1, "greedy": 1, "sampled": 7}]}}')
    (run / "alarms.jsonl").write_text(
        '{"name": 1, "level": [], "step": "z", "mend": {}, "evidence": [3, {"sample_id": []}]}\n'
    )
    tasks = ({"task_id": 4}, {"task_id": "linear/0001", "visible_tests": [1, {"cut": "x"}], "since_step": "y"})
    (run / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    assert "run" in all_pages(run.parent)


def test_rows_with_any_column_empty(run: Path) -> None:
    """A file of the right schema in which row i lacks column i."""
    rows = [row for step in range(1, 8) for row in generation(SHAPE, step, np.random.default_rng(step), "run")]
    names = [name for name in schema().names if name != "sample_id"]
    assert len(rows) > len(names)
    empty = [{**row, "sample_id": f"empty/{name}", name: None} for name, row in zip(names, rows, strict=False)]
    write_rows(run / "rollouts" / "000020-rank0.parquet", [*empty, {"sample_id": "empty/all"}])
    with browsing(run.parent) as look:
        assert f'data-total="{40 + len(names) + 1}"' in look("/runs/run/rollouts?of=all")
        for name in [*names, "all"]:
            page = look(f"/runs/run/completion?id=empty/{name}")
            if name not in {"task_id", "group_id", "all"}:
                for link in re.findall(r'href="(/runs/run/(?:group|task)\?[^"]*)"', page):
                    look(link)
        for page in PAGES:
            look(f"/runs/run/{page}")
    assert export(run, run / "report.html").completions == 40 + len(names) + 1


def test_a_fault_of_the_page_is_told_with_the_same_headers(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault <b>of the page</b>")

    monkeypatch.setattr(run_pages, "tiles", fail)
    app = build_app(library(run), "t")
    with TestClient(
        app, base_url="http://127.0.0.1", cookies={"ascent_report": "t"}, raise_server_exceptions=False
    ) as client:
        answer = client.get("/runs/run/")
    assert answer.status_code == 500
    assert "a fault &lt;b&gt;of the page" in answer.text
    assert answer.headers["content-security-policy"] == POLICY


def test_bytes_that_are_no_text(run: Path) -> None:
    for name in ("metrics.jsonl", "evaluation.json", "config.yaml", "tasks.jsonl", "alarms.jsonl"):
        (run / name).write_bytes(b"\xff\xfe\x80" * 50 + b"\n")
    shown = all_pages(run.parent)
    assert "evaluation.json" in shown
    assert "can't be understood" in shown


def test_no_step_yet(tmp_path: Path) -> None:
    (tmp_path / "run" / "rollouts").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("x: 1\n")
    shown = all_pages(tmp_path)
    assert "No step has been recorded yet." in shown


def test_other_schemas(run: Path) -> None:
    rollouts = run / "rollouts"
    older = [
        "sample_id",
        "group_id",
        "task_id",
        "generation",
        "step",
        "rank",
        "index",
        "completion",
        "program",
        "reward",
        "outcomes",
    ]
    rows = generation(SHAPE, 1, np.random.default_rng(5), "run")
    write_rows(rollouts / "000010-rank0.parquet", rows, older, version=1)
    write_rows(rollouts / "000011-rank0.parquet", rows, version=99)
    pq.write_table(pa.table({"x": [1]}), rollouts / "000012-rank0.parquet")
    odd = table_of(rows).set_column(0, "sample_id", pa.array(range(len(rows))))
    odd = odd.set_column(odd.column_names.index("outcomes"), "outcomes", pa.array(range(len(rows))))
    pq.write_table(odd.replace_schema_metadata({"ascent.rollouts": "3"}), rollouts / "000013-rank0.parquet")
    shown = all_pages(run.parent)
    assert "schema 99, written by a newer release" in shown
    assert "000012-rank0.parquet can't be read: no rollout file" in shown.replace("</code>", "")
    assert "rollouts/000013-rank0.parquet" in shown
    assert "rollouts/000010-rank0.parquet" not in shown
    assert 'data-total="48"' in shown, "five generations, and the older one"
    with browsing(run.parent) as look:
        listed = look("/runs/run/rollouts?first=1&last=1")
        assert 'data-total="16"' in listed


def test_an_old_run_says_what_it_did_not_record(tmp_path: Path) -> None:
    made = make_run(tmp_path / "run", SHAPE)
    for name in ("tasks.jsonl", "alarms.jsonl", "evaluations.jsonl"):
        (made / name).unlink()
    lines = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        for key in [key for key in line if key.startswith("signal")]:
            del line[key]
    (made / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    later = ("trainer_logps", "visible_tests", "audit_outcomes", "markers", "signal", "weight_spans")
    for path in (made / "rollouts").iterdir():
        table = pq.read_table(path).drop_columns(list(later))
        pq.write_table(table.replace_schema_metadata({"ascent.rollouts": "2"}), path)
    shown = all_pages(tmp_path)
    assert "visible against hidden: not recorded" in shown
    assert "Hollow passes" in shown.partition("Not recorded in this run:")[2].partition("</p>")[0]
    assert "No alarm." not in shown or "rules could not judge" in shown
    with browsing(tmp_path) as look:
        page = look("/runs/run/completion?id=run/4/0/0")
    assert "Log-probabilities of the trainer: not recorded." in page
    assert "not recorded</pre>" in page, "which test it is"


def test_no_permissions(run: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("takes root, to be nobody for a while")
    for name in ("metrics.jsonl", "evaluation.json", "config.yaml"):
        (run / name).chmod(0)
    (run / "rollouts" / "000001-rank0.parquet").chmod(0)
    for folder in (run, *run.parents):
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o755)
    all_pages(run.parent)  # everything that is imported late is imported
    with _as_nobody():
        shown = all_pages(run.parent)
    for name in ("metrics.jsonl", "evaluation.json", "config.yaml", "rollouts/000001-rank0.parquet"):
        assert name in shown
    assert "Permission denied" in shown
    (run / "rollouts").chmod(0)
    with _as_nobody():
        assert "can't be listed: Permission denied" in all_pages(run.parent)
    run.chmod(0)
    with _as_nobody():
        assert "Permission denied" in all_pages(run.parent)


@contextlib.contextmanager
def _as_nobody() -> Iterator[None]:
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_deleted_while_it_is_open(run: Path) -> None:
    make_run(run.parent / "other", Shape(steps=2, prompts=1))
    with browsing(run.parent) as look:
        sample = "/runs/run/completion?id=run/3/0/0"
        assert "Tests" in look(sample)
        shutil.rmtree(run / "rollouts")
        assert "completion run/3/0/0" in look(sample, 404)
        look("/runs/run/rollouts")
        (run / "metrics.jsonl").unlink()
        look("/runs/run/")
        shutil.rmtree(run)
        assert "the run run" in look("/runs/run/rollouts", 404)
        assert "other" in look("/")


def test_a_file_that_is_replaced_while_it_is_open(run: Path) -> None:
    """As a resume does: the same name, other rows."""
    opened = library(run).open("run")
    rollouts = opened.rollouts
    rollouts.index.refresh()
    row = rollouts.one("run/4/0/7")
    assert row is not None
    path = run / "rollouts" / "000004-rank0.parquet"
    pq.write_table(pq.read_table(path).slice(0, 3), path)
    assert "replaced" in rollouts.with_texts([row])[0]["unreadable"]
    rollouts.index.refresh()
    assert rollouts.one("run/4/0/7") is None
    assert rollouts.one("run/4/0/2") is not None
    opened.drop_index()


def test_a_broken_run_is_exported_with_what_it_has(run: Path, tmp_path: Path) -> None:
    (run / "rollouts" / "000002-rank0.parquet").write_bytes(b"PAR1")
    (run / "evaluation.json").write_text("{")
    written = export(run, tmp_path / "report.html")
    page = html.unescape(written.path.read_text(encoding="utf-8"))
    assert written.completions == 32
    assert {problem.file for problem in written.unread} == {"rollouts/000002-rank0.parquet", "evaluation.json"}
    assert "rollouts/000002-rank0.parquet" in page
    assert "evaluation.json" in page
    empty = tmp_path / "empty"
    (empty / "rollouts").mkdir(parents=True)
    assert export(empty, tmp_path / "empty.html").completions == 0


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such folder\n"):
        library(tmp_path / "none")
    with pytest.raises(InputError, match=r"holds no run .*\n.*runs/"):
        library(tmp_path)
    with pytest.raises(InputError, match="--export takes one run"):
        export(tmp_path, tmp_path / "x.html")
    made = make_run(tmp_path / "run", Shape(steps=1, prompts=1))
    with pytest.raises(InputError, match="can't be written"):
        export(made, tmp_path / "none" / "x.html")


def test_lines_are_read_once_and_anew_when_the_file_is_another(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    lines = GrowingLines(path, ("step",))
    lines.refresh()
    assert lines.rows == []
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    lines.refresh()
    assert [row["step"] for row in lines.rows] == [1, 2]
    assert lines.cut_short
    with open(path, "a") as file:
        file.write('ep": 3}\n\n{"step": null}\n')
    lines.refresh()
    assert [row["step"] for row in lines.rows] == [1, 2, 3]
    assert (lines.wrong, lines.cut_short) == ([5], False)
    path.write_text('{"step": 1}\n')  # shorter: a resume cut it
    lines.refresh()
    assert [row["step"] for row in lines.rows] == [1]
    other = tmp_path / "other"
    other.write_text('{"step": 8}\n{"step": 9}\n')
    other.replace(path)
    lines.refresh()
    assert [row["step"] for row in lines.rows] == [8, 9]
    path.unlink()
    path.mkdir()
    lines.refresh()
    assert lines.rows == []
    assert lines.error
