"""Belonging to a cluster, and being refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascent.cluster.connection import connected
from ascent.config.sections import ClusterSection
from ascent.errors import InputError
from tests.cluster.conftest import CORES, DEVICES, FakeCluster
from tests.free_port import free_port


def test_the_nodes_are_told_with_what_is_free(ray_cluster: FakeCluster) -> None:
    with connected(ClusterSection(address=ray_cluster.address)) as cluster:
        nodes = [node for node in cluster.nodes() if node.kind == "npu"]
        assert len(nodes) >= 3
        assert {(node.cpus, node.devices) for node in nodes} == {(CORES, DEVICES)}
        assert all(len(node.id) == 56 and node.address for node in nodes)
        free = {node.id: node for node in cluster.free()}
        assert {free[node.id] for node in nodes} == set(nodes)
        assert cluster.head_answers()
        with (
            pytest.raises(InputError, match="belongs to a Ray cluster already"),
            connected(ClusterSection(address=ray_cluster.address)),
        ):
            pass


@pytest.mark.parametrize("address", ["10.0.0.1", "host:", "host:port", ":6379", "auto:1:x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(InputError, match=r"expected auto, or HOST:PORT"), connected(ClusterSection(address=address)):
        pass


def test_an_address_where_nothing_listens_is_refused_at_once() -> None:
    pytest.importorskip("ray")
    with (
        pytest.raises(InputError, match=r"(?s)nothing listens.*ascent cluster commands"),
        connected(ClusterSection(address=f"127.0.0.1:{free_port()}")),
    ):
        pass


_JOIN = """
import sys
from ascent.cluster.connection import connected
from ascent.config.sections import ClusterSection
from ascent.errors import InputError
try:
    with connected(ClusterSection(address=sys.argv[1])):
        print("in")
except InputError as error:
    print(error)
"""


@pytest.mark.slow  # Ray tries for 20 seconds
@pytest.mark.parametrize("token", [None, "0" * 64])
def test_without_the_clusters_token_a_process_is_refused(
    ray_cluster: FakeCluster, token: str | None, tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    if token is not None:
        environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    command = [sys.executable, "-c", _JOIN, ray_cluster.address]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert "Ray doesn't take this process in" in done.stdout
    assert "RAY_AUTH_TOKEN" in done.stdout
    assert done.stderr == ""
