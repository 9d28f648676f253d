"""`ascent report` as it is given: the page, the exported file, packing, and what is refused."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

pytest.importorskip("duckdb")
pytest.importorskip("plotly")
from tests.report.synthetic_run import Shape, make_run

from ascent.cli import main
from ascent.tracking.run_directory import RunDirectory
from ascent.training.records.report_file import write_report

SHAPE = Shape(steps=3, prompts=2)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs" / "run", SHAPE)


def test_it_is_served_until_it_is_interrupted(run: Path) -> None:
    command = [sys.executable, "-m", "ascent", "report", str(run), "--language", "zh"]
    report = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert report.stdout is not None
        address = report.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/runs/run/\?token=[\w-]{32}", address)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        with pytest.raises(urllib.error.HTTPError, match="403"):
            opener.open(address.split("?")[0], timeout=60)
        page = opener.open(address, timeout=60)
        assert "token" not in page.url
        assert '<html lang="zh">' in page.read().decode()
        taken = ["report", str(run), "--port", re.findall(r":(\d+)/", address)[0]]
        refused = subprocess.run([*command[:3], *taken], capture_output=True, text=True, check=False)
        assert refused.returncode == 2
        assert "can't be had" in refused.stderr
        assert "--port" in refused.stderr
    finally:
        report.send_signal(signal.SIGINT)
        said = report.communicate(timeout=60)[1]
    assert report.returncode == 0
    assert "Traceback" not in said


def test_a_run_is_exported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--export", str(tmp_path / "out.html"), "--language", "en"]) == 0
    assert re.search(r"out\.html: [\d.]+ MB, 48 completions\n", capsys.readouterr().err)
    assert "<h1>run</h1>" in (tmp_path / "out.html").read_text(encoding="utf-8")
    assert not list(tmp_path.glob(".*"))


def test_small_files_are_packed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), "--pack"]) == 0
    assert "3 files with 48 completions are now" in capsys.readouterr().out
    assert main(["report", str(run), "--pack"]) == 0
    assert "nothing to pack" in capsys.readouterr().out


def test_what_is_refused(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in {
        ("report", str(tmp_path / "none")): "no such folder",
        ("report", str(tmp_path)): "holds no run",
        ("report", str(run), "--port", "70000"): "expected 0 to 65535",
        ("report", str(run.parent), "--export", str(tmp_path / "x")): "--export takes one run",
        ("report", str(run), "--export", str(tmp_path)): "can't be written",
        ("report", str(run.parent), "--pack"): "not a run directory",
    }.items():
        assert main(list(arguments)) == 2
        assert said in capsys.readouterr().err, arguments


def test_what_is_not_installed_is_told(run: Path) -> None:
    hidden = "import sys; sys.modules['duckdb'] = None; from ascent.cli import main"
    code = f"{hidden}; sys.exit(main(['report', {str(run)!r}]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "needs the package duckdb" in done.stderr
    assert "requirements/report.txt" in done.stderr


def test_a_run_ends_with_a_report_and_never_by_it(run: Path, tmp_path: Path) -> None:
    said: list[str] = []
    write_report(RunDirectory(run), said.append)
    assert (run / "report.html").is_file()
    assert not said
    write_report(RunDirectory(tmp_path / "none"), said.append)
    assert len(said) == 1
    assert said[0].startswith("note: report.html was not written: ")
    assert "not a run directory" in said[0]
