"""Training with vLLM 0.23, whose interfaces vllm-ascend 0.23 has, in an environment of its own that is made first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.child_pytest import ROOT, ChildRun, run_tests
from tests.row import versions_of

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(7200)]

ROW = "vllm-0.23"
TESTS = (
    "tests/rows/row_versions.py::test_versions_are_those_of_the_row",
    "tests/rollout/test_local_engine.py",
    "tests/rollout/test_short_answers.py",
    "tests/rollout/test_generate_command.py::test_figures_of_the_inference_check",
    "tests/rollout/test_generate_command.py::test_refusals",
    "tests/training/test_trainer.py",
    "tests/training/test_colocated.py::test_the_engine_samples_with_the_trained_weights",
    "tests/training/test_train_command.py::test_two_processes_train_as_one_does",
)


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> ChildRun:
    environment = {**os.environ, "PYTHON": sys.executable}
    made = subprocess.run(
        [ROOT / "scripts" / "row.sh", ROW], env=environment, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return run_tests(
        TESTS,
        tmp_path_factory.mktemp("row"),
        python=str(Path(made.stdout.strip()) / "bin" / "python"),
        environment={"ASCENT_ROW": versions_of(ROW, "torch", "transformers", "trl") + " vllm=0.23.0"},
        options=["-m", "slow or not slow"],
        seconds=7000,
    )


@pytest.mark.parametrize("node_id", TESTS)
def test_with_vllm_0_23(child: ChildRun, node_id: str) -> None:
    child.check(node_id)
