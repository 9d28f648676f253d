"""Whose exception it is, and where a failure happened, where no entry knows it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from ascent import cli
from ascent.environment import context, faults, known_faults, origins, rules, settings
from ascent.environment.log_scan import Line

DATA = Path(faults.__file__).parent


def traceback(file: str, message: str) -> str:
    return (
        "Traceback (most recent call last):\n"
        '  File "/home/u/train.py", line 3, in <module>\n    main()\n'
        f'  File "/opt/venv/lib/python3.11/site-packages/{file}", line 30, in check\n    raise\n{message}\n'
    )


@pytest.mark.parametrize(
    ("file", "area"),
    [
        ("vllm/config/model.py", "vllm-refuses-a-setting"),
        ("vllm/model_executor/model_loader/utils.py", "vllm-cannot-load-weights"),
        ("vllm/v1/core/sched/scheduler.py", "vllm-kv-cache"),
        ("vllm_ascend/worker/model_runner_v1.py", "sampling-engine-runs"),
        ("trl/trainer/grpo_config.py", "trl-refuses-a-setting"),
        ("accelerate/state.py", "distributed-setup"),
        ("torch_npu/npu/utils.py", "npu-backend"),
        ("deepspeed/runtime/engine.py", "zero-or-sharding"),
    ],
)
def test_exception_is_told_by_its_frame(file: str, area: str) -> None:
    primary = faults.diagnose_text(traceback(file, "ValueError: the frob_factor of this is odd")).primary
    assert primary is not None
    assert primary.fault == area
    assert file in primary.cause
    assert "frob_factor" in primary.mend[0]
    assert primary.confidence < 0.5


def test_exception_of_no_package_is_an_error_of_code_or_unknown() -> None:
    primary = faults.diagnose_text("[rank0]: IndexError: list index out of range\n").primary
    assert primary is not None
    assert primary.fault == "error-in-the-code"
    assert faults.diagnose_text("ValueError: nobody wrote this one down\n").verdict == "unknown"


def test_clone_beside_the_package_is_told_too() -> None:
    log = traceback("x.py", "AssertionError").replace(
        "/opt/venv/lib/python3.11/site-packages/x.py", "/vllm-workspace/vllm/vllm/v1/core/sched/scheduler.py"
    )
    primary = faults.diagnose_text(log).primary
    assert primary is not None
    assert primary.fault == "vllm-kv-cache"


def test_index_knows_where_messages_of_the_installed_packages_are_written() -> None:
    found = importlib.util.find_spec("trl")
    if found is None or found.origin is None:
        pytest.skip("TRL isn't installed")
    source = (Path(found.origin).parent / "trainer/grpo_config.py").read_text("utf-8")
    message = "'generation_batch_size' and 'steps_per_generation' can not be both configured at the same time"
    assert message in source, "TRL changed the message: take another one"
    assert origins.file_of(message).startswith("trl/trainer/")
    assert origins.file_of("nothing that anybody wrote down anywhere") == ""


def test_every_area_is_reached_by_a_file() -> None:
    files = {*origins._written().values(), "deepspeed/runtime/engine.py", "verl/x.py", "peft/x.py", "ray/x.py"}
    for area in origins.areas():
        assert area.id == "error-in-the-code" or any(area.files.search(file) for file in files), area.id
        assert area.cause
        assert area.mend


def _lines(text: str) -> list[Line]:
    return [Line(number, line) for number, line in enumerate(text.splitlines(), 1)]


def test_context_names_operator_phase_and_frame() -> None:
    text = traceback("vllm/model_executor/model_loader/utils.py", "RuntimeError: call aclnnFoo failed, error code is 1")
    found = context.read(_lines(text), text)
    assert found.operator == "aclnnFoo"
    assert found.phase == "while weights were loaded"
    assert found.frame == "vllm/model_executor/model_loader/utils.py, in check"


@pytest.mark.parametrize(
    ("line", "buffer"),
    [("HcclCommInit: no memory, HCCL_BUFFSIZE=400", "HCCL_BUFFSIZE"), ("kv_cache could not be allocated", "KV cache")],
)
def test_context_names_the_buffer_that_was_wanted(line: str, buffer: str) -> None:
    assert buffer in context.read(_lines(line), line, memory=True).buffer
    assert context.read(_lines(line), line).buffer == ""


def test_advice_names_only_commands_that_exist() -> None:
    known = {verb.replace("_", "-") for verb in cli.VERBS}
    text = "".join(file.read_text("utf-8") for file in DATA.rglob("*") if file.suffix in (".py", ".toml"))
    named = set(re.findall(r"\bascent ([a-z][a-z-]+)\b(?! (?:branch|is)\b)", text))
    assert named <= known, named - known
    assert {"doctor", "diagnose", "check-model"} <= named
    assert known_faults.load()
    assert rules.load()
    assert settings.load()
