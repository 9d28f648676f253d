"""How much power a device draws now, as its vendor's tool says it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ascent.environment.machine import Run, ask_npu_smi, run_command
from ascent.environment.npu_smi import masked_by

_SECONDS = 5.0  # that a tool may take


def device_watts(
    run: Run = run_command, variables: Mapping[str, str] | None = None, root: Path = Path("/")
) -> float | None:
    """Of the first device that this process sees; None where nothing says it. The two chips of an A3 card are told
    together, with the first of them.

    ``run``, ``variables`` and ``root`` stand for the way programs are called, the process's variables and the file
    system.
    """
    variables = os.environ if variables is None else variables
    devices = ask_npu_smi(root, run).devices
    if devices:
        visible, _ = masked_by(variables.get("ASCEND_RT_VISIBLE_DEVICES", "0"), len(devices))
        return devices[visible[0]].power_watts if visible else None
    first = variables.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    command = ["nvidia-smi", f"--id={first}", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
    answer = run(command, _SECONDS)
    if answer is None or answer[0] != 0:
        return None
    try:
        return float(answer[1].strip())
    except ValueError:  # "[N/A]"
        return None
