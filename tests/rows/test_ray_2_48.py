"""Several machines with the Ray that vllm-ascend 0.23's images carry, laid over the CPU row."""

from __future__ import annotations

import pytest
from tests.child_pytest import ChildRun, run_tests
from tests.row import row_folder, versions_of

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(1800)]

ROW = "ray-2.48"
TESTS = (
    "tests/rows/row_versions.py::test_versions_are_those_of_the_row",
    "tests/cluster/test_connection.py::test_the_nodes_are_told_with_what_is_free",
    "tests/cluster/test_connection.py::test_an_address_where_nothing_listens_is_refused_at_once",
    "tests/cluster/test_agents.py",
    "tests/cluster/test_training_over_nodes.py::test_a_lost_node_is_healed_with_the_result_of_a_run_that_was_resumed",
)


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> ChildRun:
    folder = row_folder(ROW)
    if folder is None:
        pytest.skip(f"Ray 2.48 is not installed beside the other: run `scripts/row.sh {ROW}`")
    wanted = {"ASCENT_ROW": versions_of(ROW, "ray")}
    return run_tests(TESTS, tmp_path_factory.mktemp("row"), path=[folder], environment=wanted)


@pytest.mark.parametrize("test", TESTS)
def test_with_the_older_ray(child: ChildRun, test: str) -> None:
    child.check(test)
