"""The environment of a process in which torch has the device `npu` (testing/softnpu)."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.free_port import free_port

ROOT = Path(__file__).resolve().parents[1]
# What this process may have set for itself, and would keep another from the devices.
HIDING = ("SOFTNPU_MEMORY", "ASCEND_RT_VISIBLE_DEVICES", "TORCH_DEVICE_BACKEND_AUTOLOAD", "ACCELERATE_USE_CPU")
MISSING_TOOL = 2  # the exit code of testing/softnpu/build.py


@functools.cache
def build_softnpu() -> subprocess.CompletedProcess[str]:
    """Run testing/softnpu/build.py, which takes a minute or two unless its cache has the build."""
    command = [sys.executable, str(ROOT / "testing/softnpu/build.py")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def softnpu_folder() -> Path:
    """The built package's folder; skips the test where there is no compiler, ninja or torch."""
    done = build_softnpu()
    if done.returncode == MISSING_TOOL:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def softnpu_environment(
    devices: int = 1, memory: int | None = None, strict: bool = True, own_rng: bool = False
) -> dict[str, str]:
    """This process's environment, with `devices` npu devices of `memory` bytes (64 GiB unless given) for torch.

    `strict` refuses host tensors beside npu tensors; `own_rng` gives each device a generator of its own in the place of
    the host's. PYTHONPATH holds the software NPU, Ascent's sources and the repository (for `tests.tiny_policy`).
    """
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (softnpu_folder(), ROOT / "src", ROOT))),
        "SOFTNPU_DEVICES": str(devices),
        "SOFTNPU_STRICT": str(int(strict)),
        "SOFTNPU_OWN_RNG": str(int(own_rng)),
    }
    for name in HIDING:
        variables.pop(name, None)
    if memory is not None:
        variables["SOFTNPU_MEMORY"] = str(memory)
    return variables


def run_softnpu(
    program: str, *arguments: object, environment: dict[str, str] | None = None, timeout: float = 1500
) -> str:
    """What a Python program given as text prints, run in a process with the software NPU. Asserts that it succeeds."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=softnpu_environment() if environment is None else environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def run_ranks(program: str, environment: dict[str, str], ranks: int = 2, timeout: float = 1500) -> list[str]:
    """What each rank of a program prints, with the variables that torchrun would set. Asserts that all succeed."""
    group = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
    }
    started = []
    for rank in range(ranks):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
        command = [sys.executable, "-c", program]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, env={**environment, **group, **own}, text=True, **pipes))
    try:
        ends = [process.communicate(timeout=timeout) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (out, problem) in zip(started, ends, strict=True):
        assert process.returncode == 0, f"{out[-3000:]}\n{problem[-6000:]}"
    return [out for out, _ in ends]
