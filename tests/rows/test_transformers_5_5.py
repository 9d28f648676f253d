"""Training with the transformers that vllm-ascend 0.23 pins, laid over the CPU row: what runs on an NPU machine."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from tests.child_pytest import ROOT, ChildRun, run_tests

pytestmark = pytest.mark.torch

LOCK = ROOT / "requirements" / "transformers-5.5.txt"
TESTS = (
    "tests/rows/row_versions.py::test_versions_are_those_of_the_row",
    "tests/training/test_trainer.py::test_trains_as_trl_alone_does",
    "tests/training/test_trainer.py::test_records_every_step_and_completion",
    "tests/training/test_trainer.py::test_metrics_are_a_step_s_own_whatever_logging_steps_is",
    "tests/training/test_trainer.py::test_unscorable_completions_are_masked_and_told",
    "tests/training/test_trainer.py::test_what_only_trl_can_do_is_refused_by_name",
    "tests/training/test_trainer.py::test_resumed_training_is_the_same_training",
    "tests/training/test_trainer.py::test_generations_that_feed_several_steps_resume_in_the_middle",
    "tests/training/test_trainer.py::test_overridden_methods_of_trl_are_those_it_was_written_against",
    "tests/training/test_train_command.py::test_run_directory_holds_the_whole_run",
    "tests/rollout/test_transformers_engine.py",
    "tests/compat/test_float_masks.py::test_transformers_still_turns_additive_masks_into_booleans",
    "tests/compat/test_float_masks.py::test_additive_masks_keep_their_values_after_the_mend",
)


def overlay() -> Path:
    """Where scripts/setup.sh lays the row."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "ascent" / "rows" / f"{LOCK.stem}-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:8]}"


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> ChildRun:
    if not overlay().is_dir():
        pytest.skip("transformers 5.5 is not installed beside the others: run `scripts/setup.sh transformers-5.5`")
    versions = dict(line.split("==") for line in LOCK.read_text().splitlines() if "==" in line)
    wanted = {"ASCENT_ROW": " ".join(f"{name}={version}" for name, version in versions.items())}
    return run_tests(TESTS, tmp_path_factory.mktemp("row"), path=[overlay()], environment=wanted)


@pytest.mark.parametrize("node_id", TESTS)
def test_with_transformers_5_5(child: ChildRun, node_id: str) -> None:
    if "::" in node_id:
        child.check(node_id)
        return
    inside = [name for name in child.messages if name.startswith(node_id)]
    assert inside, child.output[-3000:]
    for name in inside:
        child.check(name)
