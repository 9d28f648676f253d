"""All hostile programs and the public sets, judged over nodes and in process: the verdicts are the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from ascent.cluster.connection import connected
from ascent.cluster.judging.actors import found_judges, judges_started
from ascent.cluster.judging.pool import JudgePool
from ascent.cluster.places import JudgePlace
from ascent.config.sections import ClusterSection, SandboxSection
from ascent.sandbox import Limits, Outcome, Program, Sandbox, Test, Verdict
from ascent.sandbox.attack import LIMITS, arena, judged_by
from ascent.sandbox.hostile import attacks
from tests.cluster.conftest import FakeCluster
from tests.sandbox.test_sandbox_datasets import humaneval, mbpp, mutants, needs_data
from tests.sandbox.test_sandbox_hostile import at_a_limit, runnable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
SETTINGS = SandboxSection()
Job = tuple[str, Program, Sequence[Test]]


@pytest.fixture(scope="module")
def pool(ray_cluster: FakeCluster) -> Iterator[JudgePool]:
    """One slot on each of three nodes."""
    with connected(ClusterSection(address=ray_cluster.address)) as cluster:
        nodes = cluster.nodes()
        places = [JudgePlace(node, 1) for node in nodes if node.cpus]
        with (
            judges_started(places, SETTINGS, wait_minutes=2, nice=0) as name,
            found_judges(name, nodes, SETTINGS, wait_minutes=2) as found,
        ):
            yield found


def differing(
    pool: JudgePool, jobs: Sequence[Job], limits: Limits
) -> tuple[dict[str, tuple[Verdict, Verdict]], list[Verdict]]:
    """The jobs that are judged differently, where neither verdict is of a program that used most of its time: what such
    a program meets first depends on the machine. And all verdicts over nodes."""
    far = [future.result() for future in [pool.submit(program, tests, limits) for _, program, tests in jobs]]
    with Sandbox(slots=1, nice=0) as sandbox:
        near = sandbox.run_many([(program, tests) for _, program, tests in jobs], limits)
    assert not [verdict.infrastructure_error for verdict in far if verdict.infrastructure_error]
    pairs = {name: pair for (name, _, _), pair in zip(jobs, zip(near, far, strict=True), strict=True)}
    different = {
        name: pair
        for name, pair in pairs.items()
        if pair[0].outcomes != pair[1].outcomes and not any(map(at_a_limit, pair))
    }
    return different, far


@pytest.mark.parametrize("kind", sorted({attack.kind for attack in attacks()}))
def test_hostile_programs(pool: JudgePool, kind: str) -> None:
    with arena() as ground:
        jobs = [
            (attack.name, Program(ground.fill(attack.source), attack.language), judged_by(attack, ground.wanted))
            for attack in runnable([kind])
        ]
        different, verdicts = differing(pool, jobs, LIMITS)
        assert list(ground.traces()) == []
    assert different == {}
    assert len(jobs) >= 15
    assert sum(verdict.passed for verdict in verdicts) == 0
    assert any(not at_a_limit(verdict) for verdict in verdicts), "some are compared by their outcomes"


@needs_data
def test_public_sets_and_mutants_of_their_solutions(pool: JudgePool) -> None:
    rows = humaneval() + mbpp()
    limits = Limits(wall_seconds=30.0, cpu_seconds=20.0)
    different, verdicts = differing(pool, rows, limits)
    assert different == {}
    assert [verdict.all_passed for verdict in verdicts] == [True] * 764
    different, verdicts = differing(pool, [row for _, row in mutants(rows, 1)], Limits(wall_seconds=6, cpu_seconds=1.5))
    assert different == {}
    assert Outcome.FAILED in {outcome for verdict in verdicts for outcome in verdict.outcomes}
