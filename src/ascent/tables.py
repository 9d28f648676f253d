"""What a configuration can name, and where each of these stands. Standard library only.

Who adds a transport adds one file for it, and one line here. A table holds "name in a configuration" ->
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
# so those with fewer copies stand before the one that fits everywhere on one machine.
TRANSPORTS = {
    "hccl": "ascent.rollout.weights.transports.hccl:HcclTransport",
    "nccl": "ascent.rollout.weights.transports.nccl:NcclTransport",
    "npu_ipc": "ascent.rollout.weights.transports.npu_ipc:NpuIpcTransport",
    "ipc": "ascent.rollout.weights.transports.ipc:IpcTransport",
    "shm": "ascent.rollout.weights.transports.shm:ShmTransport",
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
