"""The training tests on a device named npu (testing/softnpu), and what only several such devices or a full one show."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.child_pytest import ROOT, ChildRun, run_tests
from tests.row import row_folder
from tests.run_config import write_config
from tests.training.numerics.test_guard_of_ranks import check_ranks

from ascent.config.trl_fields import NOTHING_SAVED
from ascent.models.starter.building import Recipe, starter_folder
from ascent.models.starter.warm_start import Schedule
from ascent.tracking.rollouts import read_rollouts
from ascent.tracking.run_directory import read_json_lines

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]
Softnpu = Callable[..., dict[str, str]]

TESTS = tuple(
    f"tests/{name}"
    for name in (
        "devices/test_devices.py::test_random_states_are_as_they_were",
        "devices/test_devices.py::test_memory_is_counted",
        "devices/test_devices.py::test_the_current_device_has_an_index_and_a_name",
        "devices/test_devices.py::test_training_on_cpu_can_be_asked_for",
        "devices/test_devices.py::test_accelerate_agrees",
        "training/test_trainer.py::test_trains_as_trl_alone_does",
        "training/test_trainer.py::test_records_every_step_and_completion",
        "training/test_trainer.py::test_gradient_checkpointing_and_bf16_give_the_same_training",
        "training/test_trainer.py::test_low_rank_adapters_learn_and_the_base_stays",
        "training/test_trainer.py::test_metrics_are_a_step_s_own_whatever_logging_steps_is",
        "training/test_trainer.py::test_unscorable_completions_are_masked_and_told",
        "training/test_trainer.py::test_resumed_training_is_the_same_training",
        "training/test_trainer.py::test_generations_that_feed_several_steps_resume_in_the_middle",
        "training/batches/test_padding_free.py",
        "rewards/test_model_reward.py::test_a_training_gets_trl_s_rewards",
        "rewards/test_model_reward.py::test_scores_are_those_of_each_text_alone_however_they_are_padded",
        "training/test_evaluations.py::test_a_training_does_not_notice_its_evaluations",
        "training/batches/test_equal_gradients.py::test_every_loss",
        "training/batches/test_equal_gradients.py::test_every_saving_alone",
        "training/batches/test_equal_gradients.py::test_from_sampling_to_gradient",
        "training/test_colocated.py::test_the_engine_samples_with_the_trained_weights",
        "training/numerics/test_guard.py::test_a_bad_step_is_skipped_and_its_culprit_named",
        "training/numerics/test_guard.py::test_overflows_of_float16_are_the_scaler_s",
        "training/numerics/test_replay.py::test_the_device_is_compared_with_the_cpu",
        "training/trial/test_worst_batch.py::test_it_is_one_step",
    )
)
QUICKSTART = ROOT / "examples" / "quickstart.yaml"


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory, softnpu: Softnpu) -> ChildRun:
    """One process for all of them. The device has a generator of its own, as a real one has."""
    environment = softnpu(own_rng=True)
    return run_tests(
        TESTS,
        tmp_path_factory.mktemp("npu"),
        path=[Path(environment["PYTHONPATH"].split(":")[0])],
        environment={name: value for name, value in environment.items() if name.startswith("SOFTNPU_")},
        options=["--device", "npu", "-m", "slow or not slow"],
    )


@pytest.mark.parametrize("node_id", TESTS)
def test_on_npu(child: ChildRun, node_id: str) -> None:
    child.check(node_id)


def ascent(environment: Mapping[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command line in a process whose device is the one of `environment`."""
    command = [sys.executable, "-m", "ascent", *map(str, arguments)]
    variables = {name: value for name, value in environment.items() if name != "ACCELERATE_USE_CPU"}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=1500, check=False)


def samples(run: Path, step: int) -> dict[str, tuple[list[int], float]]:
    """Sample id without the run's name -> sampled tokens and reward, of one step."""
    rows = read_rollouts(run / "rollouts")
    return {
        row["sample_id"].partition("/")[2]: (list(row["completion_ids"]), row["reward"])
        for row in rows
        if row["step"] == step and row["sample_id"].split("/")[1].isdigit()
    }


def test_the_quickstart_is_the_same_on_npu_and_cpu(softnpu: Softnpu, tmp_path: Path) -> None:
    """Sampled tokens and rewards of the first step are equal, losses within 1e-5, and the weights move alike."""
    recipe = Recipe(schedule=Schedule(steps=12, batch=16))  # it writes programs, hardly any of them right
    shortened = (
        f"model.path={starter_folder(recipe, tmp_path)}",
        f"tracking.folder={tmp_path}",
        "tracking.evaluate=false",
        "rollout.engine=transformers",
        "trainer.max_steps=3",
        "trainer.per_device_train_batch_size=32",
        "trainer.bf16=false",
    )
    for device, more in (("cpu", ["trainer.use_cpu=true"]), ("npu", [])):
        done = ascent(softnpu(), "train", QUICKSTART, *shortened, *more, f"tracking.name={device}")
        assert done.returncode == 0, done.stderr
        assert ("(software)" in done.stderr) == (device == "npu"), done.stderr
    on_cpu, on_npu = samples(tmp_path / "cpu", 1), samples(tmp_path / "npu", 1)
    assert len(on_cpu) == 32
    assert on_cpu == on_npu
    assert len({reward for _, reward in on_cpu.values()}) > 1
    assert max(len(tokens) for tokens, _ in on_cpu.values()) > 10
    for mine, theirs in zip(metrics(tmp_path / "cpu"), metrics(tmp_path / "npu"), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert mine["entropy"] == pytest.approx(theirs["entropy"], abs=1e-4)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
    assert max(abs(line["loss"]) for line in metrics(tmp_path / "cpu")) > 0.01


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = read_json_lines(run / "metrics.jsonl")
    assert len(lines) == 3
    return lines


def test_sharded_training_is_replicated_training(
    softnpu: Softnpu, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    """Two processes over hccl: FSDP2 gives the rewards, gradients and the saved model that DDP gives."""
    from safetensors.torch import load_file

    config = write_config(
        tmp_path / "c.yaml", tiny_policy(tied=False), task_file, per_device_train_batch_size=4, bf16=False
    )
    sharded = ("trainer.fsdp=full_shard", "trainer.fsdp_config={fsdp_version: 2}")
    runs = {}
    for name, more in (("ddp", ()), ("fsdp", sharded)):
        done = ascent(
            softnpu(devices=2),
            *("train", config, "tracking.evaluate=false", f"tracking.name={name}", *more, "--devices", 2),
        )
        assert done.returncode == 0, done.stderr
        runs[name] = tmp_path / "runs" / name
    for mine, theirs in zip(metrics(runs["ddp"]), metrics(runs["fsdp"]), strict=True):
        assert mine["reward"] == theirs["reward"]
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-5)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
    assert any(line["grad_norm"] for line in metrics(runs["ddp"]))
    replicated, gathered = (load_file(run / "model" / "model.safetensors") for run in runs.values())
    before = load_file(tiny_policy(tied=False) / "model.safetensors")
    assert replicated.keys() == gathered.keys() == before.keys()
    for name, weight in replicated.items():
        assert (weight - gathered[name]).abs().max() < 1e-3, name
    assert any((weight - replicated[name]).abs().max() > 1e-3 for name, weight in before.items())


@pytest.mark.slow
def test_sharded_ranks_skip_a_bad_step_alike(
    softnpu: Softnpu, tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    check_ranks(tiny_policy(), tmp_path, {**softnpu(devices=2), "OMP_NUM_THREADS": "1"}, "fsdp")


@pytest.mark.slow
def test_a_sharded_model_is_saved_with_transformers_5_5_too(
    softnpu: Softnpu, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    row = row_folder("transformers-5.5")
    if row is None:
        pytest.skip("transformers 5.5 is not installed beside the others: run `scripts/row.sh transformers-5.5`")
    environment = softnpu(devices=2)
    environment["PYTHONPATH"] = f"{row}:{environment['PYTHONPATH']}"
    config = write_config(tmp_path / "c.yaml", tiny_policy(), task_file, per_device_train_batch_size=4, save_steps=2)
    sharded = ("trainer.fsdp=full_shard", "trainer.fsdp_config={fsdp_version: 2}", "tracking.evaluate=false")
    done = ascent(environment, "train", config, *sharded, "--devices", 2)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "run" / "model" / "model.safetensors").is_file()


def test_memory_that_runs_out_is_explained(
    softnpu: Softnpu, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "c.yaml", tiny_policy(), task_file, max_completion_length=32, **NOTHING_SAVED)
    small = softnpu(memory=12 * 2**20)
    refused = ascent(small, "train", config, "tracking.evaluate=false")
    assert refused.returncode == 2
    assert "error: memory: does not fit: training takes" in refused.stderr
    assert "What gains most:" in refused.stderr
    assert not (tmp_path / "runs" / "run").exists()
    done = ascent(small, "train", config, "tracking.evaluate=false", "--force")
    assert done.returncode == 2
    assert "warning: memory: does not fit" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error:") == 1
    for said in (
        "out of memory on npu:0 (process 0) in step 1, computing the loss and the update",
        "Tried to allocate",
        "of 12.0 MiB",
        "by what the plan says it gains",
        "- trainer.per_device_train_batch_size=4 trainer.gradient_accumulation_steps=2 (gains ",
        "- trainer.gradient_checkpointing=true (gains ",
        f"`ascent plan {tmp_path / 'runs' / 'run' / 'config.yaml'}",
    ):
        assert said in done.stderr, done.stderr
    assert "OutOfMemoryError" in (tmp_path / "runs" / "run" / "failure-rank0.log").read_text()


@pytest.mark.slow
def test_a_worst_batch_that_does_not_fit_is_found_by_a_rehearsal(
    softnpu: Softnpu, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    """No completion of 32 random tokens is worth anything, so the run's own steps compute a single row."""
    config = write_config(tmp_path / "c.yaml", tiny_policy(), task_file, max_completion_length=32, shared_prompt="off")
    found = {}
    for name, memory in (("small", 12 * 2**20), ("large", 2**30)):
        done = ascent(softnpu(memory=memory), "train", config, "--rehearse", "--json", "--force")
        assert done.returncode == (1 if name == "small" else 0), done.stderr
        found[name] = json.loads(done.stdout)
    assert found["small"]["worst_batch"]["state"] == "out of memory"
    assert found["small"]["steps"] == found["large"]["steps"] == 2
    (short,) = (each for each in found["small"]["concerns"] if "the worst batch" in each["what"])
    assert short["level"] == "critical"
    assert short["mend"]
    assert all(" (gains " in mend for mend in short["mend"]), "by the plan"
    worst = found["large"]["worst_batch"]
    assert worst["state"] == "done"
    assert worst["peak"] > 12 * 2**20
    assert worst["planned"] == pytest.approx(worst["peak"], rel=0.1), "the plan is right to a tenth"
    assert worst["peak"] <= worst["in_use"] < worst["usable"]


def test_two_npus_train_while_a_server_samples(
    softnpu: Softnpu, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    """The whole decoupled path: both processes sample from one server, which gets verified weights from one of them."""
    config = write_config(tmp_path / "c.yaml", tiny_policy(), task_file, per_device_train_batch_size=4, bf16=False)
    server = ("rollout.engine=vllm", "rollout.mode=server", "rollout.staleness=1", "memory.kv_cache_mb=64")
    done = ascent(softnpu(devices=2), "train", config, *server, "--devices", 2)
    assert done.returncode == 0, done.stderr
    assert "weights travel by shm" in done.stderr
    run = tmp_path / "runs" / "run"
    rows = [row for row in read_rollouts(run / "rollouts") if row["sample_id"].split("/")[1].isdigit()]
    assert {row["rank"] for row in rows} == {0, 1}
    assert len({row["sample_id"] for row in rows}) == len(rows) == 3 * 8
    assert [line["rollout/staleness"] for line in metrics(run)] == [0, 1, 1]
    assert {(row["generation"], row["weight_version"]) for row in rows} == {(0, 0), (1, 0), (2, 1)}
    assert metrics(run)[0]["sampling/sampling_logp_difference/max"] < 1e-3
