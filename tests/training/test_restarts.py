"""When a training goes on by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ascent.errors import InputError
from ascent.tracking.run_directory import RunDirectory, create
from ascent.training.launch.restarts import FAILED, PORT_TAKEN, SIGNALLED, Ended, Outcome, outcome_of, train_to_the_end

DONE, STOPPED, REFUSED = Outcome(Ended.DONE), Outcome(Ended.STOPPED), Outcome(Ended.REFUSED)
CRASH, LOST = Outcome(Ended.FAILED, "its processes failed"), Outcome(Ended.LOST, "node b is lost")


class Attempts:
    """Attempts that end as told; each makes a checkpoint first where it is told a step."""

    def __init__(self, run: RunDirectory, *ends: tuple[Outcome, int]) -> None:
        self.run, self.ends = run, list(ends)
        self.seen: list[tuple[bool, str]] = []
        self.waits: list[float] = []

    def once(self, resume: bool, why: str) -> Outcome:
        self.seen.append((resume, why))
        outcome, step = self.ends.pop(0)
        if step:
            folder = self.run.checkpoints / f"checkpoint-{step}"
            folder.mkdir(exist_ok=True)
            (folder / "ascent_state.json").write_text("{}")
        return outcome

    def go(self, most: int, *, resume: bool = False) -> int:
        return train_to_the_end(self.run, self.once, resume=resume, most=most, sleep=self.waits.append)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return create(tmp_path, "run")


def test_a_lost_machine_is_one_restart_from_the_last_checkpoint(run: RunDirectory) -> None:
    made = Attempts(run, (LOST, 4), (LOST, 0), (DONE, 0))
    assert made.go(3) == 0
    assert made.seen == [(False, ""), (True, "node b is lost"), (True, "node b is lost")]
    assert made.waits[0] == 0, "the first restart doesn't wait"
    assert made.waits == sorted(made.waits)


def test_the_number_of_restarts_is_bounded(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    made = Attempts(run, (LOST, 1), (CRASH, 2), (LOST, 3))
    assert made.go(2) == 2
    assert len(made.seen) == 3
    said = capsys.readouterr().err
    assert "node b is lost; it was restarted 2 times" in said
    assert f"ascent train --resume {run.path}" in said


def test_failing_twice_at_one_checkpoint_ends_the_run(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    made = Attempts(run, (CRASH, 4), (CRASH, 0), (DONE, 0))
    assert made.go(5) == 2
    assert len(made.seen) == 2
    assert "same checkpoint" in capsys.readouterr().err


def test_failing_further_on_is_progress(run: RunDirectory) -> None:
    assert Attempts(run, (CRASH, 4), (CRASH, 6), (CRASH, 8), (DONE, 0)).go(5) == 0


@pytest.mark.parametrize(("outcome", "code"), [(STOPPED, 1), (REFUSED, 2), (DONE, 0)])
def test_other_ends_are_ends(run: RunDirectory, outcome: Outcome, code: int) -> None:
    made = Attempts(run, (outcome, 0))
    assert made.go(5) == code
    assert len(made.seen) == 1


def test_without_restarts_a_failure_ends_the_run_as_ever(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert Attempts(run, (CRASH, 4)).go(0) == 2
    assert capsys.readouterr().err == "", "the processes have said why"


def test_an_input_error_says_what_came_before_it(run: RunDirectory) -> None:
    made = Attempts(run, (LOST, 4))

    def once(resume: bool, why: str) -> Outcome:
        if why:
            raise InputError("no room on the cluster", "Join nodes.")
        return made.once(resume, why)

    with pytest.raises(InputError, match=r"(?s)no room.*node b is lost"):
        train_to_the_end(run, once, resume=False, most=3, sleep=made.waits.append)


def test_tracebacks_of_former_attempts_are_kept(run: RunDirectory) -> None:
    run.failure(0).write_text("RuntimeError")
    made = Attempts(run, (CRASH, 4), (DONE, 0))
    assert made.go(1) == 0
    assert not run.failures()
    assert [path.read_text() for path in run.logs.iterdir()] == ["RuntimeError"]


@pytest.mark.parametrize(
    ("code", "stopped", "ended"),
    [
        (0, False, Ended.DONE),
        (0, True, Ended.STOPPED),
        (2, False, Ended.REFUSED),
        (FAILED, False, Ended.FAILED),
        (PORT_TAKEN, False, Ended.FAILED),
        (SIGNALLED, False, Ended.STOPPED),
        (-9, False, Ended.FAILED),
        (1, False, Ended.FAILED),
    ],
)
def test_exit_codes_mean_what_they_say(code: int, stopped: bool, ended: Ended) -> None:
    assert outcome_of(code, stopped=stopped).ended is ended


@pytest.mark.torch
@pytest.mark.slow
def test_a_killed_process_is_restarted_on_one_machine(
    tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    from tests.cluster.processes import ranks
    from tests.run_config import write_config
    from tests.waiting import wait_until

    from ascent.tracking.run_directory import read_json_lines

    config = write_config(tmp_path / "c.yaml", tiny_policy(), task_file, max_steps=30, save_steps=2)
    run = tmp_path / "runs" / "run"
    command = [sys.executable, "-m", "ascent", "train", str(config), "--keep-going", "tracking.evaluate=false"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: len(read_json_lines(run / "metrics.jsonl")) >= 5 or process.poll() is not None, "step 5")
    os.kill(ranks(run, 1)[0], signal.SIGKILL)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert "restart 1 of at most 3" in said
    assert [line["step"] for line in read_json_lines(run / "metrics.jsonl")] == list(range(1, 31))
    assert [json.loads(line)["attempt"] for line in (run / "attempts.jsonl").read_text().splitlines()] == [1, 2]
