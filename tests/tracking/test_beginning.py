"""A run takes its folder and its name when it has something to show; before that it leaves nothing."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from ascent.errors import InputError
from ascent.tracking import beginning, run_directory
from ascent.tracking.beginning import new_run, resumed_run
from ascent.tracking.run_directory import RunDirectory

RESERVE = """
import sys, time
from pathlib import Path
from ascent.tracking.beginning import new_run
with new_run(Path(sys.argv[1]), "a") as run:
    run.config.write_text("x: 1")
    if sys.argv[2] == "result":
        run.metrics.write_text('{"step": 1}')
    print("reserved", flush=True)
    time.sleep(60)
"""


def refused(folder: Path, *results: str) -> RunDirectory:
    """A run that is refused after it has written its settings and `results`."""

    def begin() -> None:
        with new_run(folder, "a") as run:
            run.config.write_text("x: 1")
            run.environment.write_text("{}")
            run.origin.write_text("{}")
            (run.checkpoints / "checkpoint-1").mkdir()
            for name in results:
                (run.path / name).parent.mkdir(exist_ok=True)
                (run.path / name).write_text("")
            raise InputError("bad")

    with pytest.raises(InputError, match="bad"):
        begin()
    return RunDirectory(folder / "a")


def test_a_refused_run_leaves_nothing(tmp_path: Path) -> None:
    refused(tmp_path / "runs")
    assert not list(tmp_path.iterdir())
    (tmp_path / "runs").mkdir()
    refused(tmp_path / "runs")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"], "a folder that was there stays"


@pytest.mark.parametrize(
    "result", ["metrics.jsonl", "evaluation.json", "rollouts/000000-rank0.parquet", "failure-rank0.log", "model/x"]
)
def test_what_a_run_has_to_show_stays_and_keeps_its_name(tmp_path: Path, result: str) -> None:
    run = refused(tmp_path, result)
    assert (run.path / result).is_file()
    assert run.config.is_file()
    with pytest.raises(InputError, match="exists already"), new_run(tmp_path, "a"):
        pass
    assert (run.path / result).is_file()


def test_logs_of_servers_stay_to_be_read_but_take_no_name(tmp_path: Path) -> None:
    run = refused(tmp_path, "servers/0.log")
    assert (run.path / "servers" / "0.log").is_file()
    with new_run(tmp_path, "a"):
        assert not (run.path / "servers").exists()


def test_files_that_are_no_run_are_never_taken_over(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.txt").write_text("x")
    with pytest.raises(InputError, match="exists already"), new_run(tmp_path, "a"):
        pass
    assert (tmp_path / "a" / "thesis.txt").read_text() == "x"


@pytest.mark.parametrize(("shows", "taken"), [("nothing", False), ("result", True)])
def test_a_reservation_ends_with_its_process_however_it_ends(tmp_path: Path, shows: str, taken: bool) -> None:
    process = subprocess.Popen([sys.executable, "-c", RESERVE, str(tmp_path), shows], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "reserved\n"
    with pytest.raises(InputError, match="exists already"), new_run(tmp_path, "a"):
        pass
    process.kill()
    process.communicate()
    assert (tmp_path / "a" / "config.yaml").is_file(), "a kill leaves the folder"
    if taken:
        with pytest.raises(InputError, match="exists already"), new_run(tmp_path, "a"):
            pass
    else:
        with new_run(tmp_path, "a") as run:
            assert not run.config.exists()


def trained(tmp_path: Path) -> RunDirectory:
    run = run_directory.create(tmp_path, "r")
    run.config.write_text("old")
    for step in (1, 2, 3):
        run_directory.append_json_line(run.metrics, {"step": step, "seconds": step / 7})
    return run


def resume(run: RunDirectory, *lines: dict[str, float]) -> None:
    """Go on from step 2 with new settings, add `lines` to the metrics, and fail."""
    with resumed_run(run.path):
        run.config.write_text("new")
        run_directory.discard_after(run, run_directory.RunState(2, 2, 2))
        for line in lines:
            run_directory.append_json_line(run.metrics, line)
        raise InputError("bad")


def test_a_resumed_run_that_is_refused_keeps_its_settings(tmp_path: Path) -> None:
    run = trained(tmp_path)
    with pytest.raises(InputError, match="bad"):
        resume(run)
    assert run.config.read_text() == "old"
    assert [line["step"] for line in run_directory.read_json_lines(run.metrics)] == [1, 2]


def test_a_run_that_trains_is_not_resumed_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two trainings in one folder would write over each other, and the second would move away what the first wrote."""
    monkeypatch.setattr(beginning, "_ENDING", 0.3)
    process = subprocess.Popen(
        [sys.executable, "-c", RESERVE, str(tmp_path), "result"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "reserved\n"
    with pytest.raises(InputError, match="a training is at work in it"), resumed_run(tmp_path / "a"):
        pass
    process.kill()
    process.communicate()
    with resumed_run(tmp_path / "a") as run:
        assert run.config.read_text() == "x: 1"


def test_a_folder_that_can_not_be_locked_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path)

    def no_locks(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with resumed_run(run.path):
        pass


def test_a_resumed_run_that_went_on_has_its_new_settings(tmp_path: Path) -> None:
    run = trained(tmp_path)
    with pytest.raises(InputError, match="bad"):
        resume(run, {"step": 3, "seconds": 0.5})
    assert run.config.read_text() == "new"
    with pytest.raises(InputError, match="not a run directory"), resumed_run(tmp_path):
        pass
