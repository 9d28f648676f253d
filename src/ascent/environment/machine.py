"""Inspect this machine: host, driver, CANN, packages, devices, variables. Imports neither torch nor
anything of CANN.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from ascent.environment import cann, host, npu_smi, packages
from ascent.environment.inventory import Environment, NpuSmi
from ascent.environment.variables import SECRET_BEARING, WATCHED

Run = Callable[[Sequence[str], float], tuple[int, str] | None]
_USER_INFO = re.compile(r"(?<=//)[^/@\s]*@")


def run_command(command: Sequence[str], seconds: float) -> tuple[int, str] | None:
    """Run a program; its exit status and output, None when it isn't there, 124 when it took longer than `seconds`."""
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 124, f"{command[0]}: no answer within {seconds:g} s"
    except OSError:
        return None
    return done.returncode, done.stdout.decode("utf-8", errors="replace")


def inspect(
    root: Path = Path("/"),
    variables: Mapping[str, str] | None = None,
    run: Run = run_command,
    package_path: Sequence[str] | None = None,
) -> Environment:
    """Everything that the checks need to know of this machine, in well under a second where no NPU answers slowly.

    ``root``, ``variables``, ``run`` and ``package_path`` stand for the file system, the process's
    variables, the way
    programs are called and the folders with packages; tests replace them. Never raises because of what it
    finds.
    """
    variables = os.environ if variables is None else variables
    with ThreadPoolExecutor(3) as pool:
        smi = pool.submit(ask_npu_smi, root, run)
        gpus = pool.submit(_gpus, run)
        around = pool.submit(host.inspect, root)
        found, remarks = packages.installed(package_path)
        installs = cann.find(root, variables)
        npu = smi.result()
        environment = Environment(
            origin="machine",
            host=around.result(),
            packages=found,
            cann=installs,
            npu=npu if npu.driver else replace(npu, driver=cann.driver_version(root)),
            firmware=cann.firmware_version(root),
            gpus=gpus.result(),
            variables=watched(variables),
            build_target=packages.ascend_build_target(found),
            torch_cuda=packages.torch_cuda(found),
            remarks=remarks,
        )
    return environment


def watched(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter, without the passwords that proxy addresses carry."""
    kept = {name: value for name, value in sorted(variables.items()) if name in WATCHED}
    return {name: _USER_INFO.sub("", value) if name in SECRET_BEARING else value for name, value in kept.items()}


def ask_npu_smi(root: Path, run: Run) -> NpuSmi:
    """What `npu-smi info` says, wherever the driver has put it."""
    places = [shutil.which("npu-smi"), "/usr/local/bin/npu-smi", "/usr/local/sbin/npu-smi"]
    program = next((place for place in places if place and (root / place.lstrip("/")).exists()), None)
    if program is None:
        return NpuSmi("missing")
    answer = run([program, "info"], 10.0)
    if answer is None:
        return NpuSmi("missing")
    status, output = answer
    read = npu_smi.parse(output)
    if read.devices or (status == 0 and read.state == "read"):
        return read
    first = next((line.strip() for line in output.splitlines() if "fail" in line.lower() or "ret" in line), "")
    return replace(read, state="failed", error=read.error or first or output.strip()[:200] or f"exit status {status}")


def _gpus(run: Run) -> tuple[str, ...]:
    if not shutil.which("nvidia-smi"):
        return ()
    answer = run(
        ["nvidia-smi", "--query-gpu=name,memory.total,memory.used,driver_version", "--format=csv,noheader"],
        10.0,
    )
    if answer is None or answer[0] != 0:
        return ()
    return tuple(line.strip() for line in answer[1].splitlines() if line.strip())
