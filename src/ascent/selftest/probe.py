"""In a process of its own: which device trains here, and the tiny policy that the checks use.

`python -m ascent.selftest.probe FOLDER DEVICE` writes FOLDER/probe.json and, when DEVICE trains, FOLDER/policy.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path


def main(folder: Path, device: str) -> None:
    """Look at the device, then build the policy on the CPU: a few seconds."""
    from ascent.host.process import quieten_transformers, set_up_process

    set_up_process()
    quieten_transformers()
    from ascent import devices
    from ascent.models.starter.building import Recipe, build
    from ascent.models.starter.noisy_solutions import training_tasks
    from ascent.models.starter.warm_start import Schedule

    found = {
        "kind": devices.kind(),
        "count": devices.count(),
        "name": devices.name(),
        "visible": devices.visible(),
        "bf16": devices.supports_bf16(),
        **asdict(devices.use()),
    }
    (folder / "probe.json").write_text(json.dumps(found), encoding="utf-8")
    if found["kind"] != device:
        return
    recipe = Recipe(schedule=Schedule(steps=60, batch=32))
    build(recipe, training_tasks(recipe.seed), folder / "policy")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
