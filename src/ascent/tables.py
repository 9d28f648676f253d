"""What can be named in a configuration, and where it is implemented: one table a kind.

An entry is `name: "module:attribute"`, resolved when it is used, so that nothing heavy is imported to know the names.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from ascent.errors import InputError

# rollout.engine: classes with `for_trainer(EngineNeeds)`
ENGINES = {
    "vllm": "ascent.rollout.engines.colocated:ColocatedEngine",
    "transformers": "ascent.rollout.engines.transformers:TransformersEngine",
}
# algorithm.name: classes of `algorithms.base.Algorithm`, which are also the section's settings
ALGORITHMS = {
    "grpo": "ascent.algorithms.grpo:GRPO",
}
# reward.functions: reward functions, or classes of them (see `rewards.loading`)
REWARDS = {
    "code": "ascent.rewards.code:CodeReward",
}
# ascent train --launcher: functions (run directory, processes, *, resume, debug) -> exit code
LAUNCHERS = {
    "local": "ascent.training.launch.launcher:launch",
}


def load(table: Mapping[str, str], name: str) -> Any:
    """What `name` stands for. Raises InputError with the known names for one that isn't in the table."""
    if name not in table:
        raise InputError(f"{name!r} {unknown(table)}")
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def unknown(table: Mapping[str, str]) -> str:
    """What a name must be that isn't in the table."""
    names = [repr(each) for each in table]
    return "should be " + " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
