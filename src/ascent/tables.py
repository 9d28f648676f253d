"""What a configuration can name, and where each of these stands. Standard library only.

Who adds one of these adds a file for it, and a line here. A table holds "name in a configuration" ->
"module:attribute"; nothing is imported before `load` is asked for it, so the command line and the configuration know
all names at no cost.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Mapping
from typing import Any

from ascent.errors import InputError

# How new weights reach the sampling servers. Where several fit, the first one here is taken (`transports/choice.py`),
# so those with fewer copies stand before those that fit everywhere: on one machine, and between machines.
TRANSPORTS = {
    "hccl": "ascent.rollout.weights.transports.hccl:HcclTransport",
    "nccl": "ascent.rollout.weights.transports.nccl:NcclTransport",
    "npu_ipc": "ascent.rollout.weights.transports.npu_ipc:NpuIpcTransport",
    "ipc": "ascent.rollout.weights.transports.ipc:IpcTransport",
    "shm": "ascent.rollout.weights.transports.shm:ShmTransport",
    "http": "ascent.rollout.weights.transports.http:HttpTransport",
}

# rollout.engine: classes with `for_trainer(EngineNeeds)`
ENGINES = {
    "vllm": "ascent.rollout.engines.colocated:ColocatedEngine",
    "transformers": "ascent.rollout.engines.transformers:TransformersEngine",
}
# algorithm.name: classes of `algorithms.base.Algorithm`, which are also the section's settings
ALGORITHMS = {
    "grpo": "ascent.algorithms.grpo:GRPO",
    "gpro": "ascent.algorithms.gpro:GPRO",
}
# reward.functions: reward functions, or classes of them (see `rewards.loading`)
REWARDS = {
    "code": "ascent.rewards.code:CodeReward",
}
# ascent train --launcher: functions (run directory, processes, *, resume, debug, restarts) -> exit code
LAUNCHERS = {
    "local": "ascent.training.launch.launcher:launch",
    "ray": "ascent.cluster.run:launch",
}

# what judges programs beyond this machine: functions (SandboxSection, ClusterSection) -> `sandbox.judges.Judges`
JUDGES = {
    "ray": "ascent.cluster.judging.actors:open_pool",
}


def load(table: Mapping[str, str], name: str, what: str = "name") -> Any:
    """Import and return what `name` stands for in `table`; `what` is the kind of thing, for the message.

    Raises InputError for a name that the table doesn't have, with the nearest one that it has.
    """
    if name not in table:
        raise InputError(f"unknown {what} {name!r}{nearest(name, table)}", f"Known: {', '.join(table)}.")
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: "; did you mean 'x'?", or nothing where no known name is like it."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def listed(names: Iterable[str]) -> str:
    """The names in a sentence: "'a', 'b' or 'c'"."""
    quoted = [repr(name) for name in names]
    return " or ".join(filter(None, (", ".join(quoted[:-1]), quoted[-1])))
