"""transformers up to 5.17 asks SwanLab for its run to see whether there is one; from 0.10 on SwanLab raises
RuntimeError where there is none, so that no run ever begins.

Gone when transformers asks `swanlab.has_run()`.
"""

from __future__ import annotations

import os
from typing import Any


def begin_run(swanlab: Any, project: str, name: str) -> None:
    """Begin the run that transformers' SwanLabCallback would begin, unless there is one; go on in the one that the
    variable SWANLAB_RUN_ID names. `swanlab` is its module. The project isn't given by transformers' variable
    SWANLAB_PROJECT, which SwanLab takes for settings of its own in JSON."""
    try:
        running = swanlab.get_run() is not None
    except RuntimeError:
        running = False
    if not running:
        settings = {"id": os.environ.get("SWANLAB_RUN_ID"), "resume": os.environ.get("SWANLAB_RESUME")}
        named = {key: value for key, value in settings.items() if value is not None}
        swanlab.init(project=project, experiment_name=name, **named)
