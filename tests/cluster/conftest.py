"""One Ray cluster for the whole session: a head and three nodes on this machine, two NPUs each on the software NPU."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import pytest

from ascent.rollout.service.processes import start_ticks
from tests.softnpu_env import HIDING

CORES, DEVICES, NODES = 4, 2, 3
_STORE = 80 * 2**20  # bytes of each node's object store, the least that Ray takes
# The same for all clusters of this process, and set before any test runs: Ray reads it once, when it is imported, and
# vLLM imports Ray.
_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
os.environ.update(_TOKEN)
_OF_RAY = {
    "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": "1",
    "RAY_worker_niceness": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_num_prestart_python_workers": "0",
}


@dataclass
class FakeCluster:
    """A cluster of processes on this machine. `address` is the head's, HOST:PORT; `environment` that of its nodes."""

    environment: dict[str, str]
    ray_cluster: Any = field(repr=False, default=None)
    nodes: list[Any] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Of the head."""
        return str(self.ray_cluster.address)

    def add_node(self, *, cpus: int = CORES, devices: int = DEVICES, **variables: str) -> Any:
        """One more node, whose processes have these variables too. A test that breaks nodes adds its own, and removes
        them at its end."""
        resources = {"NPU": devices} if devices else {}
        with self._in_environment(variables):
            return self.ray_cluster.add_node(num_cpus=cpus, num_gpus=0, resources=resources, object_store_memory=_STORE)

    def remove(self, node: Any) -> None:
        """Take a node away, whether or not it is still alive."""
        self.ray_cluster.remove_node(node, allow_graceful=False)

    def heal(self) -> None:
        """Replace the nodes that a test has broken."""
        for number, node in enumerate(self.nodes):
            raylet = start_ticks(raylet_of_node(node))
            if raylet is None:
                self.remove(node)
                self.nodes[number] = self.add_node()
        self.ray_cluster.wait_for_nodes(timeout=60)  # and for Ray to hold the others for dead

    def start(self) -> None:
        """The head, which has no cores for anything, and the nodes."""
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "num_gpus": 0, "object_store_memory": _STORE, "include_dashboard": False}
        with self._in_environment():
            self.ray_cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = [self.add_node() for _ in range(NODES)]

    @contextlib.contextmanager
    def _in_environment(self, variables: Mapping[str, str] | None = None) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**self.environment, **(variables or {})}.items():
                patch.setenv(name, value)
            for name in HIDING:  # what holds this process to the CPU
                patch.delenv(name, raising=False)
            yield


def raylet_of_node(node: Any) -> int:
    """The process of a node."""
    return int(node.all_processes["raylet"][0].process.pid)


@contextlib.contextmanager
def own_cluster(softnpu: Callable[..., dict[str, str]]) -> Iterator[FakeCluster]:
    """A cluster of the test's own. Its nodes' processes have this process's environment, and a software NPU of two
    devices."""
    if find_spec("ray") is None:
        pytest.skip("Ray isn't installed")
    with tempfile.TemporaryDirectory(prefix="ascent-ray-", dir="/tmp") as folder:  # a socket's path has 107 letters
        wanted = softnpu(devices=DEVICES)
        wanted["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), wanted["PYTHONPATH"])))
        ours = {name: value for name, value in wanted.items() if os.environ.get(name) != value}
        cluster = FakeCluster({**ours, **_OF_RAY, **_TOKEN, "RAY_TMPDIR": folder})
        try:
            cluster.start()
            yield cluster
        finally:
            if cluster.ray_cluster is not None:
                cluster.ray_cluster.shutdown()


@pytest.fixture(scope="session")
def ray_cluster(softnpu: Callable[..., dict[str, str]]) -> Iterator[FakeCluster]:
    """The cluster of the session."""
    with own_cluster(softnpu) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _settled(request: pytest.FixtureRequest) -> None:
    """No test begins while Ray still holds a node for alive that the one before has removed."""
    if "ray_cluster" in request.fixturenames:
        request.getfixturevalue("ray_cluster").ray_cluster.wait_for_nodes(timeout=60)
