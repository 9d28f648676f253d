"""A training process in which accelerate shards CPU processes too, as it otherwise does on accelerators only.

`python sharded_worker.py RUN [--resume]`, under torch's launcher.
"""

from __future__ import annotations

import sys
from typing import Any

import accelerate.state
from accelerate.utils import DistributedType

from ascent.host.ending import end_at_once
from ascent.training.launch import worker

_original = accelerate.state.PartialState.__init__


def _init(self: Any, *positional: Any, **keywords: Any) -> None:
    _original(self, *positional, **keywords)
    shared = accelerate.state.PartialState._shared_state
    if shared.get("distributed_type") == DistributedType.MULTI_CPU:
        shared["distributed_type"] = DistributedType.MULTI_NEURON  # any accelerator without special cases


if __name__ == "__main__":
    accelerate.state.PartialState.__init__ = _init
    end_at_once(worker.main(sys.argv[1:]))
