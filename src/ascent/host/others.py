"""How much of this machine's processors others use: what is measured beside them is not what the machine can do.

Linux only (proc_stat(5)); elsewhere nothing is known.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
# user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in user's already
_IDLE, _COUNTED = (3, 4), 8


@dataclass(frozen=True, slots=True)
class Moment:
    """Seconds of CPU since the machine started: of everybody, and of those that are asked about."""

    everybody: float
    ours: float
    at: float

    def others_since(self, before: Moment) -> float:
        """Cores that others used on average."""
        used = (self.everybody - before.everybody) - (self.ours - before.ours)
        return max(0.0, used / max(self.at - before.at, 1e-6))


def moment(processes: Iterable[int] = ()) -> Moment | None:
    """Now. This process and those that it has waited for are ours, and the `processes`; None where it can't be seen."""
    ticks = os.sysconf("SC_CLK_TCK")
    try:
        fields = [int(each) for each in _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]]
    except OSError:
        return None
    everybody = sum(each for place, each in enumerate(fields[:_COUNTED]) if place not in _IDLE) / ticks
    own = os.times()
    ours = own.user + own.system + own.children_user + own.children_system
    return Moment(everybody, ours + sum(_used(pid) for pid in processes) / ticks, time.monotonic())


def _used(pid: int) -> int:
    """Ticks; 0 for what has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    return sum(int(each) for each in stat.rpartition(")")[2].split()[11:13])
