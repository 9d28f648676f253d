"""Judges as actors on the nodes of a Ray cluster: verdicts as in process, and a node that is killed loses none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ascent.cluster.connection import connected
from ascent.cluster.judging.actors import JUDGES_VARIABLE, found_judges, judges_started, open_pool, variables_of
from ascent.cluster.judging.pool import JudgePool
from ascent.cluster.places import JudgePlace
from ascent.config.sections import ClusterSection, SandboxSection
from ascent.errors import InputError
from ascent.sandbox import FunctionTest, Program
from ascent.training.judging import open_judges
from tests.cluster.conftest import FakeCluster

SETTINGS = SandboxSection(wall_seconds=5, cpu_seconds=2)
DOUBLE = [FunctionTest("f", (n,), 2 * n) for n in range(3)]
RIGHT, WRONG = Program("def f(n): return 2 * n"), Program("def f(n): return n * n")
SLOW = Program("import time\ntime.sleep(0.3)\ndef f(n): return 2 * n")


@pytest.fixture
def section(ray_cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> ClusterSection:
    monkeypatch.delenv(JUDGES_VARIABLE, raising=False)
    return ClusterSection(address=ray_cluster.address, judge_cpus=1, wait_minutes=1)


def test_a_run_with_a_cluster_is_judged_on_all_nodes(section: ClusterSection) -> None:
    with open_judges(SETTINGS, section) as judges:
        assert judges.slots == 3
        futures = [judges.submit(RIGHT if n % 2 else WRONG, DOUBLE) for n in range(12)]
        assert [future.result(60).all_passed for future in futures] == [bool(n % 2) for n in range(12)]
        judges.check("python", DOUBLE)
        judges.keep_off_engines()


@contextmanager
def eager_judges(section: ClusterSection) -> Iterator[JudgePool]:
    """One slot on every node, whose programs run at the priority of the tests."""
    with connected(section) as cluster:
        nodes = cluster.nodes()
        places = [JudgePlace(node, 1) for node in nodes if node.cpus]
        with (
            judges_started(places, SETTINGS, wait_minutes=1, nice=0) as name,
            found_judges(name, nodes, SETTINGS, wait_minutes=1) as found,
        ):
            yield found


def test_a_killed_node_loses_no_verdict(ray_cluster: FakeCluster, section: ClusterSection) -> None:
    extra = ray_cluster.add_node(cpus=2, devices=0)
    with eager_judges(section) as judges:
        assert judges.slots == 4
        futures = [judges.submit(SLOW if n % 10 == 0 else RIGHT if n % 2 else WRONG, DOUBLE) for n in range(100)]
        futures[20].result(60)
        ray_cluster.remove(extra)
        verdicts = [future.result(120) for future in futures]
    assert [verdict.infrastructure_error for verdict in verdicts] == [None] * 100
    assert [verdict.all_passed for verdict in verdicts] == [n % 10 == 0 or n % 2 == 1 for n in range(100)]


ATTACHES = """
from ascent.cluster.judging.actors import open_pool
from ascent.config.sections import ClusterSection, SandboxSection
from ascent.sandbox import FunctionTest, Program
with open_pool(SandboxSection(), ClusterSection(address="auto")) as judges:
    tests = [FunctionTest("f", (1,), 2)]
    verdicts = [each.result(60) for each in [judges.submit(Program("def f(n): return 2"), tests) for _ in range(10)]]
    print(judges.slots, sum(verdict.all_passed for verdict in verdicts))
"""


def test_processes_of_a_run_share_its_judges(section: ClusterSection) -> None:
    with connected(section) as cluster:
        places = [JudgePlace(node, 1) for node in cluster.nodes() if node.cpus]
        with judges_started(places[:2], SETTINGS, wait_minutes=1, nice=0) as name:
            variables = os.environ | variables_of(name, cluster) | {"WORLD_SIZE": "2"}
            command = [sys.executable, "-c", ATTACHES]
            ranks = [subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) for _ in range(2)]
            assert [rank.communicate(timeout=120)[0].split() for rank in ranks] == [["2", "10"]] * 2


def test_what_cant_be_had_is_refused(section: ClusterSection, monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(section) as cluster:
        (node, *_) = [node for node in cluster.nodes() if node.cpus]
        refused: list[tuple[JudgePlace, SandboxSection, str]] = [
            (JudgePlace(node, node.cpus + 1), SETTINGS, "cores, of which 5 can't judge"),
            (JudgePlace(node, node.cpus), SETTINGS, "no judge stands on"),
            (JudgePlace(node, 1), SETTINGS.model_copy(update={"packages": ["no_such"]}), "no_such"),
        ]
        with judges_started([JudgePlace(node, 1)], SETTINGS, wait_minutes=1):
            for place, settings, said in refused:
                with pytest.raises(InputError, match=said), judges_started([place], settings, wait_minutes=0.05):
                    pass
    monkeypatch.setenv(JUDGES_VARIABLE, "ascent-judges-of-nobody")
    with pytest.raises(InputError, match="no judges of that name"):
        open_pool(SETTINGS, section)
