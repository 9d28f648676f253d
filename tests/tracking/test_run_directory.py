"""Run directories: made, refused, cut back to a checkpoint."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from ascent.errors import InputError
from ascent.tracking import run_directory
from ascent.tracking.run_directory import RunState


def test_a_new_folder_is_made_and_an_old_one_refused(tmp_path: Path) -> None:
    run = run_directory.create(tmp_path / "runs", "a")
    assert run.rollouts.is_dir()
    assert run.checkpoints.is_dir()
    with pytest.raises(InputError, match=r"exists already\n.*--resume"):
        run_directory.create(tmp_path / "runs", "a")
    with pytest.raises(InputError, match="not a run directory"):
        run_directory.open_existing(run.path)
    run.config.write_text("x: 1\n")
    assert run_directory.open_existing(run.path) == run


def test_an_unwritable_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"can't be written: .*\n.*tracking.folder"):
        run_directory.create(tmp_path / "file", "a")


EVALUATED_AFTER = (0, 3, 5)  # steps


def make_run(tmp_path: Path) -> run_directory.RunDirectory:
    run = run_directory.create(tmp_path, "r")
    for generation in range(5):
        (run.rollouts / f"{generation:06d}-rank0.parquet").write_text(str(generation))
        (run.rollouts / f"{generation:06d}-rank1.parquet").write_text(str(generation))
        run_directory.append_json_line(run.metrics, {"step": generation + 1})
    for number, step in enumerate(EVALUATED_AFTER):
        run.evaluation_rollouts(number, step, 0).write_text("")
        run_directory.append_json_line(run.evaluations, {"evaluation": number, "step": step})
    evaluations = {when: {"results": [], "step": step} for when, step in (("before", 0), ("after", 5))}
    run_directory.write_json(run.evaluation, evaluations)
    return run


def test_what_lies_beyond_the_checkpoint_moves_and_nothing_is_lost(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    folder = run_directory.discard_after(run, RunState(generation=3, micro_step=3, step=3))
    assert folder == run.path / "discarded" / "1"
    assert sorted(path.name for path in run.rollouts.iterdir()) == [
        *(f"{generation:06d}-rank{rank}.parquet" for generation in range(3) for rank in range(2)),
        "eval-000000-step000000-rank0.parquet",
        "eval-000001-step000003-rank0.parquet",  # of the very checkpoint that is resumed
    ]
    assert run.next_evaluation() == 2
    assert [line["step"] for line in run_directory.read_json_lines(run.metrics)] == [1, 2, 3]
    assert [line["step"] for line in run_directory.read_json_lines(run.evaluations)] == [0, 3]
    assert [line["step"] for line in run_directory.read_json_lines(folder / "evaluations.jsonl")] == [0, 3, 5]
    assert json.loads(run.evaluation.read_text())["after"] is None
    assert json.loads((folder / "evaluation.json").read_text())["after"]["step"] == 5
    assert [line["step"] for line in run_directory.read_json_lines(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert sorted(path.name for path in folder.glob("*.parquet")) == [
        *(f"{generation:06d}-rank{rank}.parquet" for generation in (3, 4) for rank in range(2)),
        "eval-000002-step000005-rank0.parquet",
    ]
    assert run_directory.discard_after(run, RunState(3, 3, 3)) is None
    assert run_directory.discard_after(run, None) == run.path / "discarded" / "2"
    assert not list(run.rollouts.iterdir())
    assert not run_directory.read_json_lines(run.metrics)
    assert not run_directory.read_json_lines(run.evaluations)


def test_the_evaluation_after_a_run_stays_when_the_run_goes_on_from_its_end(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert run_directory.discard_after(run, RunState(generation=5, micro_step=5, step=5)) is None
    assert json.loads(run.evaluation.read_text())["after"]["step"] == 5
    assert len(list(run.rollouts.glob("eval-*"))) == len(EVALUATED_AFTER)


class Killed(BaseException):
    """Ends what was going on, as a kill does."""


def test_a_kill_while_files_are_moved_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any number of renames: every line and every file is still there, whole, and the next resume is right."""
    original = os.replace
    for survived in range(100):
        run = make_run(tmp_path / str(survived))
        files = {path.name for path in run.rollouts.iterdir()}
        done = 0

        def replace(source: Path, target: Path, most: int = survived) -> None:
            nonlocal done
            if done == most:
                raise Killed
            done += 1
            original(source, target)

        monkeypatch.setattr(os, "replace", replace)
        finished = True
        try:
            run_directory.discard_after(run, RunState(generation=3, micro_step=3, step=3))
        except Killed:
            finished = False
        monkeypatch.setattr(os, "replace", original)
        discarded = [path for path in (run.path / "discarded").rglob("*") if not path.name.startswith(".")]
        lines = [run_directory.read_json_lines(path) for path in (run.metrics, *discarded) if "metrics" in path.name]
        assert {line["step"] for each in lines for line in each} == {1, 2, 3, 4, 5}
        kept = {path.name for path in run.rollouts.iterdir()}
        moved = {path.name for path in discarded if path.suffix == ".parquet"}
        assert kept | moved == files
        assert not kept & moved
        run_directory.discard_after(run, RunState(generation=3, micro_step=3, step=3))
        assert [line["step"] for line in run_directory.read_json_lines(run.metrics)] == [1, 2, 3]
        assert len(list(run.rollouts.glob("*.parquet"))) == 3 * 2 + 2
        if finished:
            assert survived > 4
            return
    pytest.fail("discard_after never ends")


def test_a_line_cut_short_by_a_kill_is_left_out_and_kept_aside(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with open(run.metrics, "a", encoding="utf-8") as file:
        file.write('{"step": 6, "loss": 0.')
    assert [line["step"] for line in run_directory.read_json_lines(run.metrics)] == [1, 2, 3, 4, 5]
    folder = run_directory.discard_after(run, RunState(generation=6, micro_step=5, step=5))
    assert folder is not None
    run_directory.append_json_line(run.metrics, {"step": 6})
    assert [line["step"] for line in run_directory.read_json_lines(run.metrics)] == [1, 2, 3, 4, 5, 6]


def test_the_last_checkpoint_is_the_newest_complete_one(tmp_path: Path) -> None:
    run = run_directory.create(tmp_path, "r")
    assert run.last_checkpoint() is None
    for step in (9, 10, 100):
        (run.checkpoints / f"checkpoint-{step}").mkdir()
    state = RunState(generation=11, micro_step=20, step=10)
    for step in (9, 10):
        path = run.checkpoints / f"checkpoint-{step}" / run_directory.STATE_FILE
        run_directory.write_json(path, {"generation": 11, "micro_step": 20, "step": 10})
    last = run.last_checkpoint()
    assert last is not None
    assert last.name == "checkpoint-10", "checkpoint-100 was cut short by a kill"
    assert run_directory.read_state(last) == state
    files = {"files": ["model.safetensors", "deep/part.bin"]}
    run_directory.write_json(run.checkpoints / "checkpoint-100" / run_directory.STATE_FILE, {**asdict(state), **files})
    assert run.last_checkpoint() == last, "checkpoint-100 lacks files: it was being deleted"
    (last / run_directory.STATE_FILE).write_text('{"generation": 1}')
    assert run.last_checkpoint() == last, "told when it is read"
    with pytest.raises(InputError, match="not a usable checkpoint state"):
        run_directory.read_state(last)


def test_json_is_written_by_rename(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    run_directory.write_json(path, {"a": 1})
    run_directory.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert os.listdir(tmp_path) == ["a.json"]


def test_json_lines_hold_numbers_that_json_has(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    content = {"step": 1, "ratio": math.inf, "deep": {"each": [math.nan, -math.inf, 0.5]}}
    run_directory.append_json_line(path, content)
    run_directory.write_json(tmp_path / "a.json", content)

    def refuse(name: str) -> None:
        raise ValueError(name)

    read = json.loads((tmp_path / "a.json").read_text(), parse_constant=refuse)
    assert read == {"step": 1, "ratio": None, "deep": {"each": [None, None, 0.5]}}
    read = json.loads(path.read_text(), parse_constant=refuse)
    assert read == {"step": 1, "ratio": "inf", "deep": {"each": ["nan", "-inf", 0.5]}}
    assert str(run_directory.read_metrics(path)) == str([content]), "and as numbers again"


def test_later_bad_steps_move_with_what_lies_beyond_the_checkpoint(tmp_path: Path) -> None:
    run = run_directory.create(tmp_path, "run")
    for step in (3, 7):
        (run.bad_steps / str(step)).mkdir(parents=True)
        (run.bad_steps / str(step) / "step.json").write_text("{}")
    folder = run_directory.discard_after(run, RunState(generation=5, micro_step=5, step=5))
    assert folder is not None
    assert [path.name for path in run.bad_steps.iterdir()] == ["3"]
    assert (folder / "bad-steps" / "7" / "step.json").is_file()
