"""`ascent train` over the nodes of a cluster, and what becomes of it when one is lost."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ascent.tracking import attempts
from ascent.tracking.run_directory import read_json_lines
from tests.cluster.conftest import FakeCluster, own_cluster
from tests.cluster.processes import ranks, raylet_of
from tests.run_config import write_config
from tests.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]
_SAVE = 4


@pytest.fixture
def cluster(ray_cluster: FakeCluster) -> Iterator[FakeCluster]:
    yield ray_cluster
    ray_cluster.heal()


@pytest.fixture
def config(tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path) -> Path:
    """Two ranks, each with half of a step."""
    return write_config(
        tmp_path / "c.yaml", tiny_policy(), task_file, max_steps=24, save_steps=_SAVE, per_device_train_batch_size=4
    )


def train(cluster: FakeCluster, *arguments: object, ranks_: int = 2) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ascent", "train", *map(str, arguments), "--devices", str(ranks_)]
    command += [f"cluster.address={cluster.address}", "tracking.evaluate=false"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def metrics(run: Path) -> list[dict[str, Any]]:
    return read_json_lines(run / "metrics.jsonl")


def wait_for_step(run: Path, step: int, process: subprocess.Popen[str]) -> None:
    wait_until(lambda: len(metrics(run)) >= step or process.poll() is not None, f"step {step}", 300)
    assert process.poll() is None, process.communicate()[0]


def test_two_nodes_train_with_a_rank_each(cluster: FakeCluster, config: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    process = train(cluster, config, "cluster.nodes=2", "trainer.max_steps=2")
    found: dict[int, int] = {}

    def both() -> bool:
        found.update(ranks(run, attempts.latest(run)))  # the second where the port was taken meanwhile
        return len(found) == 2 or process.poll() is not None

    wait_until(both, "both ranks", 300)
    raylets = {raylet_of(rank) for rank in found.values()}
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert len(raylets) == 2, "one rank a node"
    assert [line["step"] for line in metrics(run)] == [1, 2]
    assert "rank 0] step 2/2" in said
    assert said.count("step 2/2") == 1
    assert len(list((run / "logs").glob("attempt*-rank[01].log"))) == 2
    assert "restart" not in said


@pytest.mark.slow
def test_a_lost_node_is_healed_with_the_result_of_a_run_that_was_resumed(
    cluster: FakeCluster, config: Path, softnpu: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    """Ray's process on the node of rank 1 is killed. Nothing there computes on; the spare takes its place."""
    run = tmp_path / "runs" / "run"
    process = train(cluster, config, "cluster.nodes=2")
    wait_for_step(run, _SAVE + 1, process)
    first = ranks(run, 1)
    assert sorted(first) == [0, 1]
    assert raylet_of(first[0]) != raylet_of(first[1]), "one rank a node"
    kept = tmp_path / "kept"
    killed_at = time.monotonic()
    os.kill(raylet_of(first[1]), signal.SIGKILL)
    wait_until(lambda: not ranks(run, 1), "the end of the first attempt's ranks")
    wait_until((run / "logs" / "attempt2-rank0.log").exists, "a second attempt", 300)
    shutil.copytree(run, kept)  # as it is resumed: nothing is trained yet
    steps = len(metrics(run))
    wait_until(lambda: len(metrics(run)) > steps or process.poll() is not None, "a new step", 300)
    print(f"first new step {time.monotonic() - killed_at:.1f} s after the kill")
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "is lost: its agent ended everything there: the node's Ray process is gone; restart 1 of at most 3" in said
    healed = metrics(run)
    assert [line["step"] for line in healed] == list(range(1, 25))
    assert [line["attempt"] for line in read_json_lines(run / "attempts.jsonl")] == [1, 2]
    undisturbed = [sys.executable, "-m", "ascent", "train", "--force", "--resume", str(kept), "--devices", "2"]
    undisturbed += ["cluster.address=null"]  # on one machine, with the same devices
    subprocess.run(undisturbed, env=softnpu(devices=2), check=True, capture_output=True, timeout=600)
    for mine, theirs in zip(healed, metrics(kept), strict=True):
        for name in ("reward", "loss", "grad_norm", "learning_rate", "pass_rate"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-7), (mine["step"], name)


@pytest.mark.slow
def test_with_fewer_nodes_the_batch_stays_the_same(cluster: FakeCluster, config: Path, tmp_path: Path) -> None:
    """No spare: both of the others' devices are held by somebody else."""
    import ray

    from ascent.cluster.connection import connected
    from ascent.config.sections import ClusterSection

    run = tmp_path / "runs" / "run"
    process = train(cluster, config, "cluster.nodes=2", "cluster.min_nodes=1")
    wait_for_step(run, 1, process)
    with connected(ClusterSection(address=cluster.address)):

        class Other:
            def there(self) -> bool:
                return True

        remote: Any = ray.remote(Other)
        other = remote.options(num_cpus=0, resources={"NPU": 2}).remote()
        assert ray.get(other.there.remote(), timeout=60)
        wait_for_step(run, _SAVE + 1, process)
        os.kill(raylet_of(ranks(run, 1)[1]), signal.SIGKILL)
        said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert "2 times as many passes make the same batch" in said
    lines = metrics(run)
    assert [line["step"] for line in lines] == list(range(1, 25))
    assert [line["ranks"] for line in read_json_lines(run / "attempts.jsonl")] == [2, 1]
    tokens = [line["num_tokens"] for line in lines]
    assert len({after - before for before, after in itertools.pairwise(tokens)}) == 1


@pytest.mark.slow
def test_ctrl_c_stops_after_the_step_and_the_run_goes_on_from_there(
    cluster: FakeCluster, config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "run"
    process = train(cluster, config, "trainer.max_steps=200", "trainer.save_steps=1000")
    wait_for_step(run, 2, process)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 1, said
    stopped = len(metrics(run))
    assert (run / "checkpoints" / f"checkpoint-{stopped}" / "ascent_state.json").is_file()
    assert not ranks(run, 1)


@pytest.mark.slow
def test_what_does_not_fit_is_waited_for_told_and_refused(cluster: FakeCluster, config: Path, tmp_path: Path) -> None:
    process = train(cluster, config, "cluster.nodes=4", "cluster.wait_minutes=0.05", ranks_=8)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "waiting for room" in said
    assert "cluster.wait_minutes" in said
    assert "What would fit" in said
    assert not (tmp_path / "runs" / "run").exists(), "nothing began, so there is no run"


@pytest.mark.slow
def test_a_port_that_is_taken_meanwhile_costs_no_restart(
    cluster: FakeCluster, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody listens at the port between the look and the use: here, at an address that the look doesn't see."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 29470))
        taken.listen()
        process = train(cluster, config, "cluster.nodes=2", "trainer.max_steps=2", "cluster.ports=29470-29499")
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert "restart" not in said


@pytest.mark.slow
def test_a_run_whose_cluster_loses_its_head_ends_and_says_what_to_type(
    softnpu: Callable[..., dict[str, str]], config: Path, tmp_path: Path
) -> None:
    with own_cluster(softnpu) as cluster:
        run = tmp_path / "runs" / "run"
        process = train(cluster, config, "trainer.max_steps=2000")
        wait_for_step(run, _SAVE + 1, process)
        os.kill(int(cluster.ray_cluster.head_node.all_processes["gcs_server"][0].process.pid), signal.SIGKILL)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 2, said
        assert "the head of the cluster" in said
        assert f"ascent train --resume {run} --devices 2" in said
        wait_until(lambda: not ranks(run, 1), "the end of the ranks")
