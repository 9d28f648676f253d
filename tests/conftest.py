"""Fixtures shared by all rooms: tiny policies, small task files, and the command line run as a user runs it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from ascent.host.process import set_up_process

ROOT = Path(__file__).resolve().parents[1]
set_up_process()  # before any test imports torch
# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--device npu`: the training tests on that device (tests/npu does so on a software NPU)."""
    parser.addoption("--device", choices=["cpu", "npu", "cuda"], default="cpu", help="what the training tests train on")


def pytest_configure(config: pytest.Config) -> None:
    """Hold this process, and those that it starts, to the device; that it is there."""
    wanted = config.getoption("--device")
    if wanted == "cpu":
        os.environ["ACCELERATE_USE_CPU"] = "true"
        return
    os.environ.pop("ACCELERATE_USE_CPU", None)
    from ascent import devices

    if devices.kind() != wanted:
        pytest.exit(f"--device {wanted}, but training would use {devices.kind()}", returncode=4)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow tests unless they are asked for, and those that need packages that are absent."""
    slow = pytest.mark.skip(reason="slow: run `make test-slow`")
    no_torch = pytest.mark.skip(reason="the training packages are not installed (requirements/cpu.txt)")
    asked = "slow" in (config.option.markexpr or "")
    have_torch = all(importlib.util.find_spec(name) for name in ("torch", "trl", "vllm"))
    for item in items:
        if item.get_closest_marker("slow") and not asked:
            item.add_marker(slow)
        if item.get_closest_marker("torch") and not have_torch:
            item.add_marker(no_torch)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the software NPU, if a test to be run needs it, before the time of the first such test is measured."""
    wanted = [item for item in session.items if "softnpu" in getattr(item, "fixturenames", ())]
    if not session.config.option.collectonly and any(not item.get_closest_marker("skip") for item in wanted):
        from tests.softnpu_env import build_softnpu

        build_softnpu()


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """tiny_policy(tied=..., dtype="float32") -> the folder of a random two-layer Llama with a byte-level tokenizer."""
    from tests.tiny_policy import build

    built: dict[tuple[bool, str], Path] = {}

    def make(*, tied: bool = True, dtype: str = "float32") -> Path:
        key = (tied, dtype)
        if key not in built:
            name = f"tiny-{'tied' if tied else 'untied'}-{dtype}"
            built[key] = build(tmp_path_factory.mktemp("policies") / name, tied=tied, dtype=dtype)
        return built[key]

    return make


@pytest.fixture(scope="session")
def task_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight tasks in Ascent's format. Short random completions of their prompts compile now and then."""
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    rows = [
        {
            "id": f"add/{number}",
            "prompt": f"Add {number} to a number.",
            "entry_point": "f",
            "visible_tests": [{"kind": "function", "function": "f", "args": [1], "expected": 1 + number}],
            "hidden_tests": [{"kind": "function", "function": "f", "args": [5], "expected": 5 + number}],
        }
        for number in range(8)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def ascent() -> Callable[..., subprocess.CompletedProcess[str]]:
    """ascent("train", ...) runs the command line in a process of its own."""

    def run(*arguments: object, cwd: Path | None = None, timeout: float = 1500) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ascent", *map(str, arguments)]
        path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT / "src"))))
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout)

    return run


@pytest.fixture(scope="session")
def softnpu() -> Callable[..., dict[str, str]]:
    """softnpu(devices=2, ...) -> the environment of a process in which torch has the device `npu`."""
    from tests.softnpu_env import softnpu_environment, softnpu_folder

    softnpu_folder()
    return softnpu_environment
