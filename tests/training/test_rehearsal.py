"""A rehearsal: what it makes of figures, what it advises, and a real one as a user starts it."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.run_config import write_config
from tests.trial_rows import line, row, rows, tried

from ascent.alarms.facts import RunFacts
from ascent.errors import InputError
from ascent.tracking.run_directory import RunDirectory
from ascent.training.rehearsal.figures import lengths_of, signal_of, times_of
from ascent.training.rehearsal.judging import Concern, concerns
from ascent.training.rehearsal.report import Rehearsal, duration
from ascent.training.rehearsal.samples import choose
from ascent.training.trial.found import Tried, Worst
from ascent.training.trial.starting import why_it_failed

pytestmark = pytest.mark.torch
Ascent = Callable[..., subprocess.CompletedProcess[str]]
FACTS = RunFacts(num_generations=4, max_completion_length=64)
WORST = Worst(8, 16, 64, "done", peak=2**30, planned=2**30, in_use=2**31, usable=2**33, seconds=1.0)


def judged(found: Tried, allowed: int = 64, ended: str = "") -> list[Concern]:
    lengths = lengths_of(found.rows, allowed)
    return concerns(found, signal_of(found.rows), lengths, times_of(found, evaluations=0), FACTS, ended)


def told(found: Tried, **given: Any) -> Rehearsal:
    lengths = lengths_of(found.rows, 64)
    return Rehearsal(
        folder=Path("runs/x-rehearsal"),
        steps=len(found.lines),
        device=found.found.device,
        processes=1,
        seconds=30.0,
        signal=signal_of(found.rows),
        lengths=lengths,
        worst=found.found.worst,
        times=times_of(found, evaluations=0),
        samples=choose(found.rows),
        concerns=judged(found),
        **given,
    )


LINES = [line(1, generate=9.0), line(2, generate=1.0, update=1.0), line(3, generate=1.0, update=1.4)]


# ---- figures -------------------------------------------------------------------------------------------------------


def test_signal_counts_groups_and_tasks() -> None:
    silent = rows(2, signal=False, outcomes=["passed", "passed"], reward=1.0)
    mixed = [
        row(9, 0, outcomes=["passed"]),
        row(9, 1, outcomes=["failed"]),
        row(9, 2, outcomes=["not_run"], reward=None),
    ]
    found = signal_of([*silent, *mixed])
    assert (found.groups, found.silent, found.all_pass, found.unscored) == (3, 2, 2, 1)
    assert found.share == pytest.approx(2 / 3)
    assert found.low < 2 / 3 < found.high
    assert found.passed is not None
    assert found.passed.mean == pytest.approx((1 + 1 + 0.5) / 3), "a mean over tasks; what wasn't judged counts nowhere"


def test_the_untrained_policy_has_a_rate_of_its_own() -> None:
    found = signal_of([*rows(2, outcomes=["failed"]), *rows(2, outcomes=["passed"], generation=1)])
    assert found.passed is not None
    assert found.passed_first is not None
    assert (found.passed.mean, found.passed_first.mean) == (0.5, 0.0)


def test_without_tests_there_is_no_pass_rate() -> None:
    assert signal_of(rows(2, outcomes=[])).passed is None
    assert signal_of([]).share == 0.0


def test_lengths_that_would_do() -> None:
    """Completions that end with the same chance at every token: the tail is found again from those that were cut."""
    ends_a_token, allowed = 0.02, 64
    true = [int(math.log(1 - (at + 0.5) / 400) / math.log(1 - ends_a_token)) + 1 for at in range(400)]
    seen = [
        row(0, at, completion_ids=[0] * min(tokens, allowed), finish_reason="stop" if tokens <= allowed else "length")
        for at, tokens in enumerate(true)
    ]
    found = lengths_of(seen, allowed)
    assert found is not None
    holds = sorted(true)[int(0.95 * len(true))]
    assert found.needed == pytest.approx(holds, rel=0.15)
    assert found.share == pytest.approx(sum(tokens > allowed for tokens in true) / 400)
    assert found.finished <= allowed


@pytest.mark.parametrize(("ended", "cut", "needed"), [([3, 4], 0, 64), ([3, 4], 8, None), ([], 8, None)])
def test_lengths_that_cant_be_told(ended: Sequence[int], cut: int, needed: int | None) -> None:
    seen = [row(0, at, completion_ids=[0] * tokens) for at, tokens in enumerate(ended)]
    seen += [row(0, at, completion_ids=[0] * 64, finish_reason="length") for at in range(cut)]
    found = lengths_of(seen, 64)
    assert found is not None
    assert found.needed == needed


def test_times_leave_out_the_first_step_and_know_how_sure_they_are() -> None:
    found = times_of(tried(LINES, rows(2), start_seconds=5.0), evaluations=0)
    assert found is not None
    assert found.step == pytest.approx(2.2)
    assert found.high - found.step == pytest.approx(12.706 * math.sqrt(2) * 0.2 / math.sqrt(2), rel=1e-3)
    assert found.total == pytest.approx(220 + 5)
    once = times_of(tried(LINES[:1], rows(2)), evaluations=0)
    assert once is not None
    assert (once.timed, once.low, once.high) == (1, 9.0, 9.0), "one step alone is all there is"
    assert times_of(tried([], []), evaluations=0) is None


def test_evaluations_take_the_time_of_their_sampling() -> None:
    completions = [each for step in (1, 2, 3) for each in rows(2, step=step, generation=step - 1)]
    found = times_of(tried(LINES, completions), evaluations=80)
    assert found is not None
    assert found.evaluations == pytest.approx(80 * 1.0 / 8), "eight completions a step are sampled in a second"


# ---- advice --------------------------------------------------------------------------------------------------------


def test_nothing_speaks_against_a_healthy_run() -> None:
    found = tried(LINES, rows(16), worst=WORST)
    assert not judged(found)
    assert told(found).good


def critical(found: Tried, ended: str = "") -> str:
    return " | ".join(each.what for each in judged(found, ended=ended) if each.level == "critical")


def test_no_group_with_signal() -> None:
    found = tried(LINES, rows(16, signal=False), worst=WORST)
    assert "no group of 16 has signal" in critical(found)
    assert any("more completions of each" in mend for mend in judged(found)[0].mend)
    learned = judged(tried(LINES, rows(16, signal=False, outcomes=["passed"])))[0]
    assert any("learned" in mend for mend in learned.mend), "what passes as a whole is a matter of harder tasks"
    assert not critical(tried(LINES, [*rows(16, signal=False), row(99, 0)])), "one that has some is enough to go on"
    assert judged(tried(LINES, [*rows(16, signal=False), row(99, 0)]))[0].level == "warn"
    assert not critical(tried(LINES, rows(2, signal=False))), "two groups say little"


def test_a_path_that_keeps_no_completions() -> None:
    (found,) = judged(tried(LINES, []))
    assert found.level == "info"
    assert "trainer.plain" in found.what


def test_everything_cut_off() -> None:
    cut = rows(8, finish_reason="length", completion_ids=[1] * 64)
    assert "100% of the completions are cut off at 64" in critical(tried(LINES, cut))
    some = [*rows(8), *rows(4, finish_reason="length", completion_ids=[1] * 64)]
    assert [each.level for each in judged(tried(LINES, some))] == ["warn"]


def test_a_reward_that_scores_nothing() -> None:
    assert "no completion was scored" in critical(tried(LINES, rows(8, reward=None, signal=False)))


def test_memory() -> None:
    short = replace(WORST, state="out of memory", why="12 GiB were asked for")
    found = tried(LINES, rows(8), worst=short, memory_mends=["trainer.x=1 (gains 2 GiB): slower"])
    assert "doesn't fit: 12 GiB" in critical(found)
    assert judged(found)[0].mend == ("trainer.x=1 (gains 2 GiB): slower",)
    assert "out of memory on npu:0" in critical(tried([], [], out_of_memory="out of memory on npu:0\n  - trainer.y=2"))
    killed = replace(tried(LINES, rows(8), 2, worst=replace(WORST, state="trying")), killed=True)
    assert "the kernel ended the process" in critical(killed)
    tight = judged(tried(LINES, rows(8), worst=replace(WORST, in_use=2**33)))
    assert [each.level for each in tight] == ["warn"]


def test_an_error_half_way_keeps_what_was_found() -> None:
    found = tried(LINES, rows(8), 2)
    assert found.failed
    assert "ValueError" in critical(found, ended="the rehearsal ended after 3 whole steps: ValueError: no")
    assert not replace(found, code=1).failed, "a stop is none"
    assert [each.level for each in judged(replace(found, code=1))] == ["info"]


def test_numbers_that_are_not_finite_are_told_by_their_alarm() -> None:
    found = tried([*LINES, {**line(4, generate=1.0), "loss": "nan"}], rows(8))
    assert "alarm not-finite" in critical(found)


def test_a_phase_that_could_be_done_without() -> None:
    slow = [line(step, generate=1.0, reward_exposed=3.0) for step in (1, 2, 3)]
    (found,) = judged(tried(slow, rows(8)))
    assert (found.level, found.what) == ("info", "waiting for rewards takes 75% of a step")


def test_the_last_line_of_a_failure_says_why(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.failure(0).write_text('Traceback\n  File "r.py", line 3, in reward\n    x()\nValueError: nothing to divide\n')
    error = why_it_failed(tried([], [], 2), run, "the rehearsal")
    assert error.message.endswith("whole: ValueError: nothing to divide (in reward, r.py, line 3)")
    assert str(why_it_failed(tried([], [], 2, refused="no", mend="do"), run, "x")) == str(InputError("no", "do"))


# ---- samples and text ----------------------------------------------------------------------------------------------


def test_samples_are_unlike_each_other_and_harmless() -> None:
    passing = rows(5, outcomes=["passed"], reward=1.0)
    hostile = row(50, 0, outcomes=["failed"], completion="\x1b[2J\u202eevil", task_id="t\x07", reward=0.0)
    chosen = choose([*passing, hostile, *rows(3, finish_reason="length")])
    assert len(chosen) == 10
    kinds = [each.outcome for each in chosen]
    assert "0 of 1 tests passed" in kinds
    assert any("cut off" in kind for kind in kinds)
    assert sum("1 of 1" in kind for kind in kinds) < 9
    assert len({each.task_id for each in chosen[:3]}) == 3
    text = told(tried(LINES, [*passing, hostile], worst=WORST)).to_text()
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "\x07" not in text
    assert "⟨U+001B⟩[2J⟨U+202E⟩evil" in text
    assert choose([]) == []


def test_text_and_json_say_the_same() -> None:
    found = told(tried(LINES, rows(16, signal=False), worst=WORST))
    text, content = found.to_text(), json.loads(json.dumps(found.to_json()))
    assert "The run had better not start so." in text
    assert not content["good"]
    assert content["schema"] == "ascent.rehearsal/1"
    assert "planned 1.0 GiB (+0%)" in text
    assert content["worst_batch"]["peak"] == 2**30
    nothing = told(tried([], [], out_of_memory="out of memory"))
    assert "no group was sampled" in nothing.to_text()
    json.dumps(nothing.to_json())


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.5, "0.5 s"), (48, "48 s"), (240, "4 min"), (7800, "2 h 10 min"), (3600 * 30, "30 h 0 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# ---- the command ---------------------------------------------------------------------------------------------------


def test_a_real_rehearsal(ascent: Ascent, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "c.yaml", tiny_policy(), task_file, max_steps=4, max_completion_length=16)
    done = ascent("train", config, "--rehearse", "--json")
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == "ascent.rehearsal/1"
    assert found["good"] == (done.returncode == 0)
    assert found["steps"] == 3, "of the run's four, one is left for the worst batch"
    assert found["signal"]["completions"] == 24
    assert found["lengths"]["allowed"] == 16
    worst = found["worst_batch"]
    assert (worst["state"], worst["rows"], worst["completion"]) == ("done", 8, 16)
    assert worst["peak"] > 0
    assert worst["planned"] > 0
    assert found["times"]["steps"] == 4
    assert found["times"]["total_low"] <= found["times"]["total"] <= found["times"]["total_high"]
    assert len(found["samples"]) == 10
    folder = tmp_path / "runs" / "run-rehearsal"
    assert found["folder"] == str(folder)
    assert json.loads((folder / "rehearsal.json").read_text()) == found
    lines = [json.loads(each) for each in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 4
    assert worst["seconds"] == lines[-1]["times"]["update"], "of the step that it was, not of the one before"
    assert worst["peak"] == lines[-1]["device"]["phases"]["update"]["allocated"]
    assert "reward" not in lines[-1], "nothing was sampled for it"
    assert all("reward" in line for line in lines[:-1])
    assert "step 3/4" in done.stderr
    assert "step 4/4" not in done.stderr, "it is no step of the run"
    assert not list((folder / "checkpoints").iterdir())
    assert not (tmp_path / "runs" / "run").exists(), "the run's own name stays free"
    assert "The run had better" in done.stderr or "the run can start" in done.stderr


def refusals(config: Path) -> dict[str, tuple[list[object], str]]:
    return {
        "tasks": ([config, "--rehearse", "tasks.limit=1"], "1 training tasks, but a generation takes 2"),
        "time": ([config, "--rehearse", "5x"], "'5x' is no time"),
        "none": ([config, "--rehearse", "0m"], "'0m' is no time"),
        "file": (["--rehearse"], "takes a configuration file"),
        "resume": (["--resume", config.parent, "--rehearse"], "Leave --resume out"),
        "json": ([config, "--json"], "Give it with --rehearse"),
        "reward": (
            ["--rehearse", config, "reward.functions=[bad_reward:fails]"],
            "ended before its first step was whole: ValueError: nothing to divide (in fails, ",
        ),
    }


@pytest.mark.parametrize("case", ["time", "none", "file", "resume", "json"])
def test_what_is_refused_at_once(
    case: str, tmp_path: Path, tiny_policy: Callable[..., Path], task_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ascent.cli import main

    arguments, says = refusals(write_config(tmp_path / "c.yaml", tiny_policy(), task_file))[case]
    assert main(["train", *map(str, arguments)]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("case", ["tasks", "reward"])
def test_what_ends_a_rehearsal(
    case: str,
    ascent: Ascent,
    tiny_policy: Callable[..., Path],
    task_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "bad_reward.py").write_text("def fails(**_):\n    raise ValueError('nothing to divide')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    arguments, says = refusals(write_config(tmp_path / "c.yaml", tiny_policy(), task_file))[case]
    done = ascent("train", *arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("error:") == 1
    assert not done.stdout
    assert (tmp_path / "runs").exists() == (case == "reward"), "only what shows something stays"


@pytest.mark.slow
def test_a_real_rehearsal_with_vllm(
    ascent: Ascent, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    config = write_config(
        tmp_path / "c.yaml", tiny_policy(tied=False), task_file, max_steps=4, max_completion_length=16
    )
    given = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(given | {"rollout": {"engine": "vllm"}, "memory": {"kv_cache_mb": 16}}))
    done = ascent("train", config, "--rehearse", "--json")
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert found["worst_batch"]["state"] == "done"
    assert found["times"]["phases"]["sync"] > 0


@pytest.mark.slow
def test_two_processes_rehearse(
    ascent: Ascent, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    config = write_config(
        tmp_path / "c.yaml",
        tiny_policy(),
        task_file,
        max_steps=4,
        per_device_train_batch_size=4,
        max_completion_length=8,
    )
    done = ascent("train", config, "--rehearse", "--json", "--devices", 2)
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert (found["processes"], found["worst_batch"]["rows"]) == (2, 4)
    assert found["signal"]["completions"] == 24
