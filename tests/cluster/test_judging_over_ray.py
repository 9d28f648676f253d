"""Judges as actors on the nodes of a Ray cluster: verdicts as in process, and a node that is killed loses none."""

from __future__ import annotations

import pytest

from ascent.cluster.judging.actors import JUDGES_VARIABLE
from ascent.config.sections import ClusterSection, SandboxSection
from ascent.sandbox import FunctionTest, Program
from ascent.training.judging import open_judges
from tests.cluster.conftest import FakeCluster

SETTINGS = SandboxSection(wall_seconds=5, cpu_seconds=2)
DOUBLE = [FunctionTest("f", (n,), 2 * n) for n in range(3)]
RIGHT, WRONG = Program("def f(n): return 2 * n"), Program("def f(n): return n * n")
SLOW = Program("import time\ntime.sleep(0.5)\ndef f(n): return 2 * n")


@pytest.fixture
def section(ray_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> ClusterSection:
    monkeypatch.delenv(JUDGES_VARIABLE, raising=False)
    return ClusterSection(address=ray_cluster.address, judge_cpus=1, wait_minutes=1)


def test_a_run_with_a_cluster_is_judged_on_all_nodes(section: ClusterSection) -> None:
    with open_judges(SETTINGS, section) as judges:
        assert judges.slots == 3
        futures = [judges.submit(RIGHT if n % 2 else WRONG, DOUBLE) for n in range(120)]
        assert [future.result(60).all_passed for future in futures] == [bool(n % 2) for n in range(120)]
        judges.check("python", DOUBLE)
        judges.keep_off_engines()


def test_a_killed_node_loses_no_verdict(ray_cluster: FakeCluster, section: ClusterSection) -> None:
    extra = ray_cluster.add_node(cpus=2, devices=0)
    try:
        with open_judges(SETTINGS, section) as judges:
            assert judges.slots == 4
            futures = [judges.submit(SLOW if n % 4 == 0 else RIGHT if n % 2 else WRONG, DOUBLE) for n in range(100)]
            futures[20].result(60)
            ray_cluster.remove(extra)
            verdicts = [future.result(120) for future in futures]
        assert [verdict.infrastructure_error for verdict in verdicts] == [None] * 100
        assert [verdict.all_passed for verdict in verdicts] == [n % 4 == 0 or n % 2 == 1 for n in range(100)]
    finally:
        if extra in ray_cluster.ray_cluster.worker_nodes:
            ray_cluster.remove(extra)
