"""An agent's processes have what they need, and end with it, with its node and with its driver."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ascent.cluster import lease
from ascent.cluster.agent import Job
from ascent.cluster.connection import Cluster, connected
from ascent.cluster.held import Held, NodeLostError, give_back
from ascent.cluster.logs import Shown
from ascent.cluster.nodes import Node
from ascent.cluster.places import TrainingPlace
from ascent.config.sections import ClusterSection
from ascent.errors import InputError
from ascent.rollout.service.processes import start_ticks
from tests.cluster.conftest import FakeCluster, raylet_of_node
from tests.cluster.processes import raylet_of
from tests.waiting import wait_until

# it tells its environment, and leaves a child in a session of its own
_JOB = """
import json, os, subprocess, sys, time
left = subprocess.Popen([sys.executable, "-c", "import os; os.read(0, 1)"], start_new_session=True)
told = {"pids": [os.getpid(), left.pid], "environment": dict(os.environ), "nice": os.getpriority(os.PRIO_PROCESS, 0)}
with open(sys.argv[1] + ".tmp", "w") as file:
    json.dump(told, file)
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
print("begun", flush=True)
time.sleep(600)
"""


@pytest.fixture
def cluster(ray_cluster: FakeCluster) -> Iterator[Cluster]:
    with connected(ClusterSection(address=ray_cluster.address)) as joined:
        yield joined
    ray_cluster.heal()


def node_of(cluster: Cluster, told: object = None) -> Node:
    """A node with devices; the one of Ray's that is given."""
    nodes = [node for node in cluster.nodes() if node.devices]
    return next(node for node in nodes if told is None or node.id == told.node_id)  # type: ignore[attr-defined]


def hold(cluster: Cluster, node: Node, shown: Shown | None = None) -> Held:
    """One rank's place there, once its agent is there."""
    held = Held(TrainingPlace(node, 1, 0, (0,), 2), "npu", None)
    look_until(cluster, held, lambda: held.came, "the agent")
    return held


def look_until(
    cluster: Cluster, held: Held, condition: Callable[[], object], what: str, shown: Shown | None = None
) -> None:
    def looked() -> object:
        held.look(shown or Shown(), {node.id for node in cluster.nodes()})
        return condition()

    wait_until(looked, what)


def started(held: Held, folder: Path) -> dict[str, object]:
    """What a job says that was started there."""
    told = folder / "told.json"
    held.start(Job("job", (sys.executable, "-c", _JOB, str(told)), {"OURS": "1"}, str(folder / "logs" / "job.log")))
    wait_until(told.exists, "the job's word")
    found: dict[str, object] = json.loads(told.read_text())
    return found


def gone(told: dict[str, object]) -> Callable[[], bool]:
    return lambda: all(start_ticks(pid) is None for pid in told["pids"])  # type: ignore[attr-defined]


def test_a_job_has_its_devices_interface_threads_and_priority_and_nothing_of_rays(
    cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    held = hold(cluster, node_of(cluster))
    try:
        told = started(held, tmp_path)
        environment = told["environment"]
        assert isinstance(environment, dict)
        assert environment["ASCEND_RT_VISIBLE_DEVICES"] in ("0", "1")
        assert environment["GLOO_SOCKET_IFNAME"] == environment["HCCL_SOCKET_IFNAME"] != ""
        assert environment["OMP_NUM_THREADS"] in ("1", "2")
        assert environment["OURS"] == "1"
        assert not [name for name in environment if name.startswith("RAY_")]
        assert told["nice"] == 0
        wait_until(lambda: (tmp_path / "logs/job.log").read_text() == "begun\n", "its log")
        shown = Shown()
        look_until(cluster, held, lambda: shown.last(held.node.address, "job"), "its line here", shown)
        assert f"[{held.node.address} job] begun" in capfd.readouterr().err
    finally:
        give_back([held])
    assert gone(told)(), "it ends with its agent, and its child in a session of its own as well"
    wait_until(lambda: {node.id: node.devices for node in cluster.free()}[held.node.id] == 2, "the device given back")


@pytest.mark.parametrize(("number", "why"), [(signal.SIGKILL, "is gone"), (signal.SIGSTOP, "stands still")])
def test_a_node_whose_ray_is_killed_or_stopped_computes_nothing(
    ray_cluster: FakeCluster, cluster: Cluster, tmp_path: Path, number: signal.Signals, why: str
) -> None:
    node = ray_cluster.nodes[0]
    held = hold(cluster, node_of(cluster, node))
    told = started(held, tmp_path)
    raylet = raylet_of(told["pids"][0])  # type: ignore[index]
    assert raylet == raylet_of_node(node)
    began = time.monotonic()
    os.kill(raylet, number)
    try:
        look_until(cluster, held, lambda: held.lost, "that it is lost")
        wait_until(gone(told), "the end of what it had")
    finally:
        os.kill(raylet, signal.SIGKILL)
    assert held.lost is not None
    assert f"the node's Ray process {why}" in held.lost or "refuses connections" in held.lost
    assert time.monotonic() - began < lease.LOST + 15, "sooner than Ray would say it"
    with pytest.raises(NodeLostError, match="node "):
        held.call("beat")


@pytest.mark.slow  # a lease is long; tests/package/test_keeper.py has short ones
def test_what_an_agent_has_ends_when_its_driver_asks_no_more(cluster: Cluster, tmp_path: Path) -> None:
    held = hold(cluster, node_of(cluster))
    told = started(held, tmp_path)
    wait_until(gone(told), "the end of the lease")  # nobody looks
    look_until(cluster, held, lambda: held.lost, "that it is lost")
    held.kill()


def test_a_port_that_is_taken_is_not_given(cluster: Cluster) -> None:
    import socket

    held = hold(cluster, node_of(cluster))
    try:
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, which listen later
            taken.bind((held.node.address, 0))
            port = taken.getsockname()[1]
            with pytest.raises(InputError, match=rf"none of the ports {port}-{port} is free"):
                held.call("free_port", port, port)
        assert held.call("free_port", port, port) == port
        with pytest.raises(InputError, match="none of the ports"):
            held.call("free_port", port, port, frozenset({port}))
    finally:
        give_back([held])
