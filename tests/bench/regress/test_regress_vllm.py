"""`ascent regress` with real vLLM, as users use it: in process, as a service, and of another version."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ascent.rollout.engines.served.http_thread import HttpThread
from ascent.rollout.engines.served.replica import Replica, this_process
from ascent.rollout.service.address import find_service

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(7200)]
ROOT = Path(__file__).resolve().parents[3]
NAME = "regress"
Ascent = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def model(tiny_policy: Callable[..., Path]) -> Path:
    return tiny_policy(tied=False)


@pytest.fixture(scope="module")
def record(ascent: Ascent, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("record") / "record.jsonl"
    done = ascent("regress", "record", model, "--out", file, "--repeat", 2)
    assert done.returncode == 0, done.stderr
    assert file.stat().st_size < 200_000
    return file


def compared(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode == 1) == (found["verdict"] == "changed")
    return found


OUTPUTS_ONLY = ("--ignore", "speed", "memory", "--json", "--repeat")


def test_new_starts_are_equal(ascent: Ascent, record: Path) -> None:
    found = compared(ascent("regress", "compare", record, *OUTPUTS_ONLY, 2))
    assert found["verdict"] == "equal"


def test_a_weight_that_changed(ascent: Ascent, record: Path, model: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    other = tmp_path / "model"
    shutil.copytree(model, other)
    tensors = load_file(other / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] += 0.02
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    refused = ascent("regress", "compare", record, other, *OUTPUTS_ONLY, 1)
    assert refused.returncode == 2
    assert "is a record of another model" in refused.stderr
    found = compared(ascent("regress", "compare", record, other, "--other-weights", *OUTPUTS_ONLY, 1))
    assert found["verdict"] == "changed"


def test_another_dtype(ascent: Ascent, record: Path) -> None:
    found = compared(ascent("regress", "compare", record, "--dtype", "bfloat16", *OUTPUTS_ONLY, 1))
    assert found["verdict"] == "changed"
    assert found["environment"]["dtype"] == ["float32", "bfloat16"]


def test_transformers_against_vllm(ascent: Ascent, record: Path) -> None:
    """Two implementations of one precision: within tolerance, which is what the least tolerance is for."""
    found = compared(ascent("regress", "compare", record, "--engine", "transformers", *OUTPUTS_ONLY, 1))
    assert {each["verdict"] for each in found["prompts"]} <= {"equal", "within tolerance"}


@pytest.fixture(scope="module")
def service(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("serve")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        command = [sys.executable, "-m", "ascent", "serve", str(model), "--name", NAME, "--max-model-len", "160"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        output = folder / "terminal"
        with output.open("wb") as terminal:
            process = subprocess.Popen(
                [*command, "--kv-cache-mb", "32"], stdout=terminal, stderr=terminal, env=environment
            )
        try:
            until = time.monotonic() + 1200
            while "ends it" not in output.read_text(encoding="utf-8"):
                assert process.poll() is None, output.read_text(encoding="utf-8")
                assert time.monotonic() < until, output.read_text(encoding="utf-8")
                time.sleep(0.2)
            yield f"service:{NAME}"
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(300)


def test_a_service(ascent: Ascent, model: Path, record: Path, service: str, tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    done = ascent("regress", "record", model, "--out", file, "--engine", service, "--repeat", 2)
    assert done.returncode == 0, done.stderr
    assert compared(ascent("regress", "compare", file, *OUTPUTS_ONLY, 2))["verdict"] == "equal"
    across = compared(ascent("regress", "compare", record, "--engine", service, *OUTPUTS_ONLY, 1))
    assert across["verdict"] in ("equal", "within tolerance")
    assert across["environment"]["engine"] == ["colocated", "service"]


def test_a_service_that_can_t_be_asked(ascent: Ascent, record: Path, service: str, tmp_path: Path) -> None:
    address = find_service(NAME)
    http = HttpThread()
    try:
        replica = Replica(address.urls[0], address.token, "h" * 32, http)
        http.run(replica.take(this_process("a training")))
        held = ascent("regress", "compare", record, "--engine", service, *OUTPUTS_ONLY, 1)
        assert held.returncode == 2
        assert "is held by a training (a training)" in held.stderr
        http.run(replica.begin(7, 30.0))
        http.run(replica.commit(7))
        http.run(replica.release())
        trained = ascent("regress", "compare", record, "--engine", service, *OUTPUTS_ONLY, 1)
        assert trained.returncode == 2
        assert "has a training's weights (version 7)" in trained.stderr
    finally:
        http.close()


def test_against_vllm_0_23(record: Path, tmp_path: Path) -> None:
    """In an environment of its own that is made first: outputs are the same or near, and what changed is told."""
    made = subprocess.run(
        [ROOT / "scripts" / "row.sh", "vllm-0.23"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    python = Path(made.stdout.strip()) / "bin" / "python"
    command = [str(python), "-m", "ascent", "regress", "compare", str(record), *OUTPUTS_ONLY, "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = compared(done)
    assert found["verdict"] in ("equal", "within tolerance")
    assert found["environment"]["vLLM"][1] == "0.23.0"
