"""The environment of a process in which torch has the device `npu` (testing/softnpu)."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MISSING_TOOL = 2  # the exit code of testing/softnpu/build.py


@functools.cache
def softnpu_folder() -> Path:
    """The built package's folder, made on the first call; skips the test where there is no compiler, ninja or torch."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "testing/softnpu/build.py")], capture_output=True, text=True, check=False
    )
    if done.returncode == MISSING_TOOL:
        pytest.skip(f"the software NPU can't be built: {done.stderr.strip()}")
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
    for name in ("SOFTNPU_MEMORY", "ASCEND_RT_VISIBLE_DEVICES", "TORCH_DEVICE_BACKEND_AUTOLOAD"):
        variables.pop(name, None)
    if memory is not None:
        variables["SOFTNPU_MEMORY"] = str(memory)
    return variables


def run_softnpu(
    program: str, *arguments: object, environment: dict[str, str] | None = None, timeout: float = 240
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
