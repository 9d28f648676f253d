"""A machine whose link is cut: it runs on, nobody reaches it, and nothing tells either side."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ascent.cluster import lease
from ascent.tracking.run_directory import read_json_lines
from tests.cluster.conftest import FakeCluster, own_cluster
from tests.cluster.processes import ranks
from tests.run_config import write_config
from tests.waiting import wait_until

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(1200)]
_HOST, _INSIDE, _NAME = "10.213.7.1", "10.213.7.2", f"ascent{os.getpid()}"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextlib.contextmanager
def namespace() -> Iterator[str]:
    """A network namespace with a link to this machine's; the name of the link's near end."""
    if os.geteuid() or shutil.which("ip") is None:
        pytest.skip("network namespaces need root, and ip")
    near, far = f"an{os.getpid()}", f"af{os.getpid()}"
    try:
        _run("ip", "netns", "add", _NAME)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr.decode()}")
    try:
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        _run("ip", "link", "set", far, "netns", _NAME)
        _run("ip", "address", "add", f"{_HOST}/24", "dev", near)
        _run("ip", "link", "set", near, "up")
        inside = ("ip", "-n", _NAME)
        _run(*inside, "address", "add", f"{_INSIDE}/24", "dev", far)
        for link in ("lo", far):
            _run(*inside, "link", "set", link, "up")
        _run(*inside, "route", "add", "default", "via", _HOST)
        yield near
    finally:
        _run("ip", "netns", "delete", _NAME)


@contextlib.contextmanager
def node_inside(cluster: FakeCluster) -> Iterator[None]:
    """A node of the cluster in the namespace."""
    command = ["ip", "netns", "exec", _NAME, sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
    command += [f"--address={cluster.address}", f"--node-ip-address={_INSIDE}", "--num-cpus=4"]
    command += ['--resources={"NPU": 2}', "--object-store-memory=83886080", "--disable-usage-stats"]
    environment = {**os.environ, **cluster.environment}
    environment.pop("ACCELERATE_USE_CPU", None)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        process.wait(90)  # Ray drains the node for half a minute


def test_a_machine_that_is_cut_off_ends_what_it_computes_and_is_replaced(
    softnpu: Callable[..., dict[str, str]], tiny_policy: Callable[..., Path], task_file: Path, tmp_path: Path
) -> None:
    config = write_config(
        tmp_path / "c.yaml", tiny_policy(), task_file, max_steps=400, save_steps=5, per_device_train_batch_size=4
    )
    run = tmp_path / "runs" / "run"
    with namespace() as link, own_cluster(softnpu) as cluster, node_inside(cluster):
        time.sleep(8)
        command = [sys.executable, "-m", "ascent", "train", str(config), "--devices", "2", "cluster.nodes=2"]
        command += [f"cluster.address={cluster.address}", "tracking.evaluate=false"]
        with open(tmp_path / "said", "w+", encoding="utf-8") as said:
            process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
            metrics = run / "metrics.jsonl"
            wait_until(lambda: len(read_json_lines(metrics)) >= 6 or process.poll() is not None, "step 6", 300)
            assert process.poll() is None, (tmp_path / "said").read_text()
            attempt = read_json_lines(run / "attempts.jsonl")[0]
            assert _INSIDE in attempt["nodes"], "its address comes first, so it trains"
            cut_at = time.monotonic()
            _run("ip", "link", "set", link, "down")
            wait_until(lambda: not ranks(run, 1), "the end of all that trained", 60)
            assert time.monotonic() - cut_at < lease.LOST + 25, "by the lease, or since the other end was stopped"
            wait_until((run / "logs" / "attempt2-rank0.log").exists, "a second attempt", 200)
            second = read_json_lines(run / "attempts.jsonl")[1]
            assert _INSIDE not in second["nodes"]
            assert _INSIDE in second["why"]
            steps = len(read_json_lines(metrics))
            wait_until(lambda: len(read_json_lines(metrics)) > steps, "a new step", 200)
            process.terminate()
            assert process.wait(120) == 1, (tmp_path / "said").read_text()
