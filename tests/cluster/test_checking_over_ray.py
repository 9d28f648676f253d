"""`ascent cluster check` on a cluster of fake nodes, and what a run refuses before it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ascent.cli import main
from ascent.cluster.checking.admission import check_admission
from ascent.cluster.checking.checks import refuse_unfit
from ascent.cluster.connection import connected
from ascent.config import RunConfig
from ascent.errors import InputError
from tests.cluster.conftest import FakeCluster


def config_of(ray_cluster: FakeCluster, tmp_path: Path, **sections: Any) -> RunConfig:
    return RunConfig(
        model={"path": "builtin:starter"},
        cluster={"address": ray_cluster.address},
        tracking={"folder": str(tmp_path / "runs")},
        **sections,
    )


def test_a_good_cluster_is_right(
    ray_cluster: FakeCluster, tiny_policy: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"model: {{path: {tiny_policy()}}}\n")
    main(["cluster", "check", str(file), f"cluster.address={ray_cluster.address}", "--run", str(tmp_path), "--json"])
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert report["schema"] == "ascent.cluster.check/1"
    assert len(report["nodes"]) == 4
    assert report["nodes"][1]["versions"]["ray"] == report["nodes"][0]["versions"]["ray"]
    levels = {each["rule"]: each["level"] for each in report["findings"] if each["rule"].startswith("A9")}
    may_be_of_this_machine = {"A907"} | ({"A909"} if os.getpriority(os.PRIO_PROCESS, 0) else set())
    expected = {"A901", "A902", "A903", "A905", "A906", "A907", "A908", "A909", "A910", "A911", "A912", "A913", "A914"}
    assert set(levels) == expected
    assert {rule for rule, level in levels.items() if level != "ok"} <= may_be_of_this_machine, said.err
    assert "4 nodes" in said.err


def test_nodes_that_differ_are_refused_before_anything_starts(
    ray_cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One package is another on one node, and the run directory is each node's own."""
    older = tmp_path / "packages" / "transformers-4.0.0.dist-info"
    older.mkdir(parents=True)
    (older / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 4.0.0\n")
    path = os.pathsep.join([str(older.parent), ray_cluster.environment["PYTHONPATH"]])
    extra = ray_cluster.add_node(cpus=1, devices=0, PYTHONPATH=path)
    try:
        monkeypatch.chdir(tmp_path)
        config = config_of(ray_cluster, tmp_path)
        with connected(config.cluster) as cluster:
            with pytest.raises(InputError) as refused:
                refuse_unfit(cluster, config, tmp_path)
            apart = Path("/proc/self/cwd/run")  # a different folder in processes that stand elsewhere
            with pytest.raises(InputError, match="isn't shared with"):
                refuse_unfit(cluster, config, apart)
        said = str(refused.value)
        assert "transformers differs" in said
        assert "4.0.0 on" in said
        assert "use one image on all machines" in said
        assert said.count("error  ") == 1
    finally:
        ray_cluster.remove(extra)


OPEN_TO_ALL = """
import sys
from ray.cluster_utils import Cluster
head = {"num_cpus": 0, "num_gpus": 0, "object_store_memory": 80 << 20, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


def test_a_cluster_without_a_token_is_refused(ray_cluster: FakeCluster) -> None:
    assert [each.level for each in check_admission(ray_cluster.address)] == ["ok"]
    variables = os.environ | ray_cluster.environment | {"RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-c", OPEN_TO_ALL]
    with subprocess.Popen(command, env=variables, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as head:
        assert head.stdout is not None
        (found,) = check_admission(head.stdout.readline().strip())
        head.communicate("")
    assert (found.rule, found.level) == ("A912", "error")
    assert "lets anybody in" in found.what
    assert "RAY_AUTH_MODE=token" in found.mend[0]


def test_whoever_cant_be_asked_isnt_called_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascent.cluster.checking.admission._SECONDS", 1.0)
    (found,) = check_admission("127.0.0.1:1")
    assert (found.rule, found.level) == ("A912", "warning")
