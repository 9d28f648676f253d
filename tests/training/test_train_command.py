"""`ascent train` as a user runs it: files, stop and resume, several processes, bad input."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.run_config import write_config

from ascent.tracking.rollouts import read_rollouts
from ascent.tracking.run_directory import read_json_lines

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]
Ascent = Callable[..., subprocess.CompletedProcess[str]]


def assert_whole(run: Path, steps: int) -> list[dict[str, Any]]:
    """Every step and every generation is there once, and no file is half written."""
    lines = read_json_lines(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    names = sorted(path.name for path in (run / "rollouts").glob("0*"))
    assert names == [f"{number:06d}-rank0.parquet" for number in range(steps)]
    rows = read_rollouts(run / "rollouts")
    assert len({row["sample_id"] for row in rows}) == len(rows) == 8 * steps
    assert not list(run.rglob(".*.tmp"))
    return lines


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ascent", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_step(run: Path, step: int, process: subprocess.Popen[str], seconds: float = 1200) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if len(read_json_lines(run / "metrics.jsonl")) >= step:
            return
        if process.poll() is not None:
            pytest.fail(f"ended before step {step}: {process.communicate()[1]}")
        time.sleep(0.05)
    process.kill()
    pytest.fail(f"no step {step} within {seconds} s")


def test_run_directory_holds_the_whole_run(
    ascent: Ascent, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "small.yaml", tiny_policy(), task_file)
    done = ascent("train", config)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "run"
    for line in assert_whole(run, 3):
        assert {"reward", "loss", "pass_rate", "times", "engine", "device", "learning_rate"} <= set(line)
    assert len(read_rollouts(run / "rollouts" / "eval-000000-step000000-rank0.parquet")) == 2 * (1 + 2)
    assert len(read_rollouts(run / "rollouts" / "eval-000001-step000003-rank0.parquet")) == 2 * (1 + 2)
    rows = read_rollouts(run / "rollouts")
    assert any(row["compiled"] for row in rows)
    assert any(row["reward"] for row in rows)
    assert all(row["outcomes"] and row["prompt"] and row["sandbox_level"] for row in rows)
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert len(evaluation["before"]["results"]) == len(evaluation["after"]["results"]) == 2
    assert (run / "model" / "model.safetensors").is_file()
    assert "step 3/3" in done.stderr
    assert "held-out pass rate after" in done.stderr
    again = ascent("train", run / "config.yaml", "tracking.name=again", "trainer.max_steps=1")
    assert again.returncode == 0, "the resolved configuration is a configuration: " + again.stderr
    refused = ascent("train", config)
    assert refused.returncode == 2
    assert "exists already" in refused.stderr
    assert "--resume" in refused.stderr


def test_ctrl_c_saves_and_the_run_goes_on_where_it_was(
    ascent: Ascent, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "c.yaml", tiny_policy(), task_file, max_steps=24, save_steps=1000)
    run = tmp_path / "runs" / "run"
    process = start("train", config, "tracking.evaluate=false")
    wait_for_step(run, 2, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 1, errors
    assert "stopping after this step" in errors
    assert f"ascent train --resume {run}" in errors
    stopped_at = len(read_json_lines(run / "metrics.jsonl"))
    assert 2 <= stopped_at < 24
    assert_whole(run, stopped_at)
    resumed = ascent("train", "--resume", run, "trainer.max_steps=26")
    assert resumed.returncode == 0, resumed.stderr
    assert f"resuming after step {stopped_at}" in resumed.stderr
    assert_whole(run, 26)
    assert not (run / "discarded").exists()


def test_a_kill_loses_only_what_lies_beyond_the_checkpoint(
    ascent: Ascent, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "c.yaml", tiny_policy(), task_file, max_steps=16, save_steps=4)
    run = tmp_path / "runs" / "run"
    process = start("train", config, "tracking.evaluate=false")
    wait_for_step(run, 6, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    seen = len(read_json_lines(run / "metrics.jsonl"))
    resumed = ascent("train", "--resume", run)
    assert resumed.returncode == 0, resumed.stderr
    assert_whole(run, 16)
    discarded = run / "discarded" / "1"
    if seen % 4:
        assert (discarded / "metrics.jsonl").is_file()
        assert list(discarded.glob("*.parquet"))


def test_two_processes_train_as_one_does(
    ascent: Ascent, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    """Real vLLM in each process, DDP over gloo. The same samples give the same losses; weights reach every engine."""
    config = write_config(tmp_path / "c.yaml", tiny_policy(tied=False), task_file, max_steps=6)
    common = (config, "rollout.engine=vllm", "memory.kv_cache_mb=16")
    one = ascent("train", *common, "tracking.name=one")
    assert one.returncode == 0, one.stderr
    two = ascent("train", *common, "tracking.name=two", "trainer.per_device_train_batch_size=4", "--devices", 2)
    assert two.returncode == 0, two.stderr
    lines_one = assert_whole(tmp_path / "runs" / "one", 6)
    lines_two = read_json_lines(tmp_path / "runs" / "two" / "metrics.jsonl")
    assert [line["step"] for line in lines_two] == [1, 2, 3, 4, 5, 6]
    assert any(line["loss"] != 0 for line in lines_one)
    for mine, theirs in zip(lines_one, lines_two, strict=True):
        assert mine["reward"] == pytest.approx(theirs["reward"])
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-4)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-2, abs=1e-6)
        for line in (mine, theirs):
            assert line["sampling/sampling_logp_difference/max"] <= 1e-4, "sampler and trainer have drifted apart"
    by_rank = [
        [row for row in read_rollouts(tmp_path / "runs" / "two" / "rollouts") if row["rank"] == rank] for rank in (0, 1)
    ]
    assert len(by_rank[0]) == len(by_rank[1]) == 6 * 4
    samples_one = {
        (r["group_id"], r["index"]): r["completion_ids"] for r in read_rollouts(tmp_path / "runs/one/rollouts")
    }
    samples_two = {(r["group_id"], r["index"]): r["completion_ids"] for r in by_rank[0] + by_rank[1]}
    first = [place for place in samples_one if place[0].startswith("0-")]
    assert first
    assert all(samples_one[place] == samples_two[place] for place in first)


@pytest.mark.slow
@pytest.mark.parametrize("override", ["model.lora.r=4", "model.dtype=bfloat16", "trainer.gradient_checkpointing=true"])
def test_other_ways_to_train_keep_sampler_and_trainer_in_step(
    override: str, ascent: Ascent, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "c.yaml", tiny_policy(), task_file, max_steps=5)
    done = ascent("train", config, "rollout.engine=vllm", "memory.kv_cache_mb=16", override)
    assert done.returncode == 0, done.stderr
    lines = assert_whole(tmp_path / "runs" / "run", 5)
    assert any(line["grad_norm"] > 0 for line in lines)
    for line in lines:
        assert line["sampling/sampling_logp_difference/mean"] <= (0.01 if "bfloat16" in override else 1e-4)


def test_several_processes_stop_together_and_resume(
    ascent: Ascent, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    config = write_config(
        tmp_path / "c.yaml", tiny_policy(), task_file, max_steps=80, per_device_train_batch_size=4, save_steps=1000
    )
    run = tmp_path / "runs" / "run"
    process = start("train", config, "tracking.evaluate=false", "--devices", "2")
    wait_for_step(run, 2, process)
    process.send_signal(signal.SIGHUP)  # as a lost connection does
    _, errors = process.communicate(timeout=900)
    assert process.returncode == 1, errors
    stopped_at = len(read_json_lines(run / "metrics.jsonl"))
    assert stopped_at < 80
    assert (run / "checkpoints" / f"checkpoint-{stopped_at}" / "ascent_state.json").is_file()
    resumed = ascent("train", "--resume", run, "--devices", "2")
    assert resumed.returncode == 0, resumed.stderr
    lines = read_json_lines(run / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 81))
    assert len(list((run / "rollouts").glob("0*-rank[01].parquet"))) == 160


@pytest.mark.slow
def test_several_processes_resume_inside_a_generation(
    ascent: Ascent, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    """Two optimizer steps a generation. Each process keeps its part of it; one alone samples it again and says so."""
    config = write_config(
        tmp_path / "c.yaml",
        tiny_policy(),
        task_file,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        steps_per_generation=2,
        max_completion_length=3,
        lr_scheduler_type="constant",
        save_steps=1,
        eval_strategy="steps",
        eval_steps=1,
    )
    reward = "reward.functions=[code, tests.small_trainer:vowels]"
    runs = tmp_path / "runs"

    def train(*arguments: object) -> str:
        done = ascent("train", *arguments, cwd=Path(__file__).parents[2])
        assert done.returncode == 0, done.stderr
        return done.stderr

    train(config, reward, "tracking.name=whole", "--devices", 2)
    train(config, reward, "tracking.name=parted", "trainer.max_steps=1", "--devices", 2)
    checkpoint = runs / "parted" / "checkpoints" / "checkpoint-1"
    assert len(list(checkpoint.glob("buffered-rank[01].safetensors"))) == 2
    shutil.copytree(runs / "parted", runs / "alone")
    said = train("--resume", runs / "parted", "trainer.max_steps=3", "--devices", 2)
    assert "sampled again" not in said
    whole, parted = (read_json_lines(runs / name / "metrics.jsonl") for name in ("whole", "parted"))
    assert any(line["loss"] for line in whole)
    for name in ("step", "generation", "loss", "grad_norm", "entropy"):
        assert [line[name] for line in parted] == [line[name] for line in whole], name
    ids = {
        name: {
            row["sample_id"].partition("/")[2]: row["completion_ids"] for row in read_rollouts(runs / name / "rollouts")
        }
        for name in ("whole", "parted")
    }
    assert len(ids["whole"]) == 2 * 16
    assert ids["parted"] == ids["whole"]
    evaluations = [row for path in (runs / "whole" / "rollouts").glob("eval-*") for row in read_rollouts(path)]
    assert len({row["sample_id"] for row in evaluations}) == len(evaluations) == 2 * (2 * 3) + 3 * 8
    groups = Counter(row["group_id"] for row in evaluations if row["evaluation"] == "eval")
    assert set(groups.values()) == {4}
    assert len(read_json_lines(runs / "whole" / "evaluations.jsonl")) == 5
    said = train("--resume", runs / "alone", "trainer.max_steps=2", "trainer.per_device_train_batch_size=8")
    assert "note: the checkpoint falls into a generation, which is sampled again" in said
    assert [line["generation"] for line in read_json_lines(runs / "alone" / "metrics.jsonl")] == [0, 1]


def test_bad_input_is_one_clear_message(
    tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, what was wrong and what to do, and no traceback. Cases that need no torch are in tests/config."""
    from ascent.cli import main

    config = write_config(tmp_path / "c.yaml", tiny_policy(), task_file)
    no_tokenizer = tmp_path / "no-tokenizer"
    no_tokenizer.mkdir()
    for name in ("config.json", "model.safetensors"):
        (no_tokenizer / name).write_bytes((tiny_policy() / name).read_bytes())
    cases = {
        f"model.path={no_tokenizer}": ("no tokenizer in it", "Copy the tokenizer's files"),
        f"model.path={tmp_path / 'absent'}": ("no such folder",),
        "tasks.train=absent.jsonl": ("there is no task file absent.jsonl",),
        "tasks.max_prompt_tokens=3": ("every prompt is longer than 3 tokens",),
        "trainer.max_completion_length=256": ("leaves no room for a prompt in the context of 256 tokens",),
        "trainer.num_generations=3": ("must be divisible by num_generations",),
        "trainer.per_device_train_batch_size=64": ("6 training tasks, but a generation takes 16 different ones",),
    }
    for override, expected in cases.items():
        assert main(["train", str(config), override]) == 2, override
        said = capsys.readouterr().err
        assert all(text in said for text in expected), (override, said)
        assert "Traceback" not in said
        assert said.count("error:") == 1
        assert not (tmp_path / "runs").exists(), f"{override} left something"


def test_a_refused_resumption_changes_nothing(
    tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ascent.cli import main

    config = write_config(tmp_path / "c.yaml", tiny_policy(), task_file, save_steps=1, max_steps=1)
    assert main(["train", str(config), "tracking.evaluate=false"]) == 0, capsys.readouterr().err
    run = tmp_path / "runs" / "run"
    before = (run / "config.yaml").read_text()
    for override in ("trainer.num_generations=3", "trainer.per_device_train_batch_size=64", "trainer.max_steps=yes"):
        assert main(["train", "--resume", str(run), override]) == 2, override
        assert (run / "config.yaml").read_text() == before, override
    assert main(["train", "--resume", str(run), "trainer.max_steps=2"]) == 0, capsys.readouterr().err
    assert "max_steps: 2" in (run / "config.yaml").read_text()


def test_an_unexpected_failure_is_kept_and_explained(
    tiny_policy: Callable[..., Path],
    task_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ascent.training.run
    from ascent.cli import main

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("ImportError: libhccl.so: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(ascent.training.run, "train", fails)
    config = write_config(tmp_path / "c.yaml", tiny_policy(), task_file)
    assert main(["train", str(config)]) == 2
    said = capsys.readouterr().err
    run = tmp_path / "runs" / "run"
    assert "Traceback" in said
    assert "cann-env-not-sourced" in said
    assert f"the failure is kept in {run / 'failure-rank0.log'}" in said
    assert "libhccl.so" in (run / "failure-rank0.log").read_text()
    environment = json.loads((run / "environment.json").read_text())
    assert environment["schema"] == "ascent.environment/1"


def test_preflight_errors_stop_a_run_unless_forced(
    tiny_policy: Callable[..., Path],
    task_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ascent.training.launch.worker
    from ascent.cli import main
    from ascent.environment import Finding, Preflight, inspect

    broken = Finding("error", "A101", "CANN is not there", "Nothing runs.", ("install it",))
    monkeypatch.setattr("ascent.environment.preflight", lambda **_: Preflight(inspect(), (broken,), 0.1))
    started: list[Path] = []

    def work(path: Path, **_: object) -> int:
        started.append(path)
        return 0

    monkeypatch.setattr(ascent.training.launch.worker, "work", work)
    config = write_config(tmp_path / "c.yaml", tiny_policy(), task_file)
    assert main(["train", str(config)]) == 2
    said = capsys.readouterr().err
    assert "CANN is not there" in said
    assert "insist with --force" in said
    assert not started
    assert main(["train", str(config), "tracking.name=forced", "--force"]) == 0
    assert started == [tmp_path / "runs" / "forced"]
