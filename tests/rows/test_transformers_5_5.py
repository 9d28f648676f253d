"""Training with the transformers that vllm-ascend 0.23 pins, laid over the CPU row: what runs on an NPU machine."""

from __future__ import annotations

import pytest
from tests.child_pytest import ChildRun, run_tests
from tests.row import row_folder, versions_of

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]

ROW = "transformers-5.5"
TESTS = (
    "tests/rows/row_versions.py::test_versions_are_those_of_the_row",
    "tests/training/test_trainer.py::test_trains_as_trl_alone_does",
    "tests/training/test_trainer.py::test_records_every_step_and_completion",
    "tests/training/test_trainer.py::test_metrics_are_a_step_s_own_whatever_logging_steps_is",
    "tests/training/test_trainer.py::test_unscorable_completions_are_masked_and_told",
    "tests/training/test_trainer.py::test_servers_must_be_named",
    "tests/training/test_trainer.py::test_resumed_training_is_the_same_training",
    "tests/training/test_trainer.py::test_generations_that_feed_several_steps_resume_in_the_middle",
    "tests/training/test_trainer.py::test_overridden_methods_of_trl_are_those_it_was_written_against",
    "tests/training/test_trl_fields.py::test_every_field_of_trl_s_configuration_is_in_the_table",
    "tests/training/test_trl_fields.py::test_the_value_that_asks_for_nothing_is_trl_s_default",
    "tests/training/batches/test_padding_free.py",
    "tests/rollout/test_transformers_engine.py",
    "tests/models/test_adapters.py::test_merged_weights_are_those_that_training_samples_with",
    "tests/models/test_adapters.py::test_merged_once_and_again_when_anything_changes",
    "tests/compat/test_fsdp_model.py",
    "tests/compat/test_float_masks.py::test_transformers_still_turns_additive_masks_into_booleans",
    "tests/compat/test_float_masks.py::test_additive_masks_keep_their_values_after_the_mend",
)


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> ChildRun:
    folder = row_folder(ROW)
    if folder is None:
        pytest.skip(f"transformers 5.5 is not installed beside the others: run `scripts/row.sh {ROW}`")
    wanted = {"ASCENT_ROW": versions_of(ROW, "transformers", "tokenizers")}
    return run_tests(TESTS, tmp_path_factory.mktemp("row"), path=[folder], environment=wanted)


@pytest.mark.parametrize("node_id", TESTS)
def test_with_transformers_5_5(child: ChildRun, node_id: str) -> None:
    child.check(node_id)
