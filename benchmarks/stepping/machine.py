"""Is anybody else using this machine? Then nothing can be measured on it. Linux only."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
TOLERATED = 0.10  # of a core


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of CPU since the machine started: of everybody, and of this process and all that it started."""

    everybody: float
    ours: float
    by_process: dict[int, tuple[str, float]]  # of the others
    at: float

    def others_since(self, before: Usage) -> float:
        """Cores that others used on average."""
        used = (self.everybody - before.everybody) - (self.ours - before.ours)
        return max(0.0, used / max(self.at - before.at, 1e-6))

    def names_since(self, before: Usage) -> str:
        """Which processes used most, and how much of a core."""
        seconds = max(self.at - before.at, 1e-6)
        grown = [
            ((used - before.by_process.get(pid, (name, 0.0))[1]) / seconds, pid, name)
            for pid, (name, used) in self.by_process.items()
        ]
        busiest = [each for each in sorted(grown, reverse=True)[:3] if each[0] >= 0.02]
        return ", ".join(f"{name} (process {pid}, {share:.0%} of a core)" for share, pid, name in busiest)


def usage() -> Usage:
    """As of now."""
    processes = {pid: (parent, name, used) for pid, parent, name, used in _processes()}
    ours = _descendants(os.getpid(), {pid: parent for pid, (parent, _, _) in processes.items()})
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _waiting, irq, softirq, steal = (int(each) for each in fields)
    return Usage(
        everybody=(user + nice + system + irq + softirq + steal) / _TICKS,
        ours=sum(used for pid, (_, _, used) in processes.items() if pid in ours),
        by_process={pid: (name, used) for pid, (_, name, used) in processes.items() if pid not in ours},
        at=time.monotonic(),
    )


def busy(seconds: float = 1.0) -> str | None:
    """Who uses the machine beside this program, None if hardly anybody does."""
    before = usage()
    time.sleep(seconds)
    after = usage()
    others = after.others_since(before)
    if others <= TOLERATED:
        return None
    return f"others use {others:.2f} cores: {after.names_since(before) or 'processes that have ended meanwhile'}"


def describe() -> dict[str, str | int]:
    """What the figures are of."""
    info = Path("/proc/cpuinfo").read_text()
    model = next((line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")), "")
    return {"cpu": model or platform.machine(), "cores": len(os.sched_getaffinity(0))}


def _processes() -> Iterator[tuple[int, int, str, float]]:
    """(pid, parent, name, seconds of CPU; those of its ended children, which it has waited for, are its own)"""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:  # it has ended
                continue
            name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
            yield int(entry.name), int(rest[1]), name, sum(int(each) for each in rest[11:15]) / _TICKS


def _descendants(root: int, parents: dict[int, int]) -> set[int]:
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found
