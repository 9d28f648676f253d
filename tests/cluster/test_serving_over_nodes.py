"""Servers over the nodes of a cluster: real ones, a node lost with one of them, and weights before it samples again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ascent.rollout.service import servers_file
from ascent.tracking.run_directory import read_json_lines
from tests.cluster.conftest import FakeCluster
from tests.cluster.processes import ranks, raylet_of, replicas
from tests.run_config import write_config
from tests.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(1200)]
_MORE = 300.0  # seconds for servers to come, on a busy machine


@pytest.fixture
def cluster(ray_cluster: FakeCluster) -> Iterator[FakeCluster]:
    yield ray_cluster
    ray_cluster.heal()


def test_a_run_goes_on_while_a_server_s_node_is_lost_and_replaced(
    cluster: FakeCluster, tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    """The servers of the node that is lost serve again on another one, and sample with the weights of that time."""
    config = write_config(
        tmp_path / "c.yaml", tiny_policy(tied=False), task_file, max_steps=5000, save_steps=5000, learning_rate=1e-3
    )
    run = tmp_path / "runs" / "run"
    command = [sys.executable, "-m", "ascent", "train", str(config), f"cluster.address={cluster.address}"]
    command += ["rollout.engine=vllm", "rollout.mode=server", "rollout.replicas=2", "memory.kv_cache_mb=16"]
    command += ["tracking.evaluate=false", "rollout.dtype=float32", "trainer.bf16=false"]
    output, metrics = tmp_path / "output", run / "metrics.jsonl"
    with output.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)

    def goes_on(words: str, count: int, steps: int) -> bool:
        """Whether these words were said so often, and so many steps made; whether that will never be."""
        ended = process.poll() is not None
        return ended or (output.read_text().count(words) >= count and len(read_json_lines(metrics)) >= steps)

    wait_until(lambda: goes_on("", 0, 2), "a step", _MORE)
    assert process.poll() is None, output.read_text()
    mine = raylet_of(ranks(run, 1)[0])
    victim = next(raylet for raylet in map(raylet_of, replicas()) if raylet != mine)
    os.kill(victim, signal.SIGKILL)
    killed_at = len(read_json_lines(metrics))
    wait_until(lambda: goes_on("serves at http://", 3, killed_at), "those that were lost to serve again", _MORE)
    served_at = len(read_json_lines(metrics))
    wait_until(lambda: goes_on("", 0, served_at + 5), "steps with all servers", _MORE)
    process.send_signal(signal.SIGINT)
    process.wait(120)
    said = output.read_text()
    assert process.returncode == 1, said
    assert " is lost: " in said
    lines = read_json_lines(metrics)
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    for line in lines[killed_at:]:
        assert line["sampling/sampling_logp_difference/max"] <= 1e-4, "what sampled had the trainer's weights"
    assert "ALARM mismatch" not in said
    assert servers_file.read(run / "servers" / servers_file.SERVERS)["state"] == "failed", "they were stopped"
    wait_until(lambda: not replicas(), "the end of the servers")


def test_a_standing_service_says_where_it_is_and_ends_when_asked(
    cluster: FakeCluster, tiny_policy: Callable[..., Path], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "ascent", "serve", str(tiny_policy()), "--cluster", cluster.address]
    command += ["--kv-cache-mb", "16", "--max-model-len", "256", "--logs", str(tmp_path / "logs"), "--name", "over"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2
    assert "ASCENT_API_KEY" in refused.stderr
    environment = {**os.environ, "ASCENT_API_KEY": "k" * 32}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    file = tmp_path / "logs" / servers_file.SERVERS
    wait_until(lambda: servers_file.read(file)["state"] != "starting" or process.poll() is not None, "a server", _MORE)
    assert process.poll() is None, process.communicate()[1]
    assert servers_file.read(file)["state"] == "ready"
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert f"rollout.server={file}" in said
    assert "service over stopped" in said
    wait_until(lambda: not replicas(), "the end of the server")
