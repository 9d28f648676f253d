"""What this process may use of the machine's cores and memory: by its affinity, its control groups, and beside whom.

A container or a batch system bounds a process through control groups (cgroups), one or several levels deep; the
machine's totals say nothing of that. The kernel's documentation has the files: `cgroup-v2.rst` (`cpu.max`,
`memory.max`), `sched-bwc.rst` and `cgroup-v1/memory.rst` (version 1).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from ascent.errors import InputError

PROCESSES_VARIABLE = "LOCAL_WORLD_SIZE"  # how many processes torch's launcher, and so ours, started on this machine


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that this process and those it starts may use together: at least one.

    Bounded by the affinity of the process (which cpusets bound too), and by the lowest CPU quota of the control groups
    that it is in; of a quota of 2.5 cores two count. `root` is `/`, or the top of a test tree.
    """
    return max(1, min([_cores_of(0), *_quotas(root)]))


def cores_of_this_process(root: Path = Path("/")) -> int:
    """As `usable_cores`, shared evenly by the training processes that a launcher started on this machine.

    A process that is bound to cores of its own keeps these. Raises InputError when LOCAL_WORLD_SIZE is no number of
    processes.
    """
    processes = _processes_here()
    own = _cores_of(0)
    launchers = max(own, _cores_of(os.getppid())) if processes > 1 else own
    return max(1, min([own, *(cores // processes for cores in (launchers, *_quotas(root)))]))


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that the control groups of this process allow it, with all that they hold; None when they set no limit."""
    return min((limit for limit, _ in _memory(root)), default=None)


def memory_left(root: Path = Path("/")) -> int | None:
    """Bytes of `memory_limit` that nobody uses yet; file pages that the kernel would give up first count as unused."""
    return min((max(0, limit - used) for limit, used in _memory(root)), default=None)


def _processes_here() -> int:
    text = os.environ.get(PROCESSES_VARIABLE, "1")
    if not text.isdigit() or int(text) < 1:
        raise InputError(
            f"{PROCESSES_VARIABLE}={text!r} is no number of processes; a launcher such as torchrun sets it",
            "Unset it, or set it to the number of training processes on this machine.",
        )
    return int(text)


def _cores_of(process: int) -> int:
    """How many cores the affinity of a process allows; 0 is this one. A process that has ended allows none."""
    if not hasattr(os, "sched_getaffinity"):  # not on Linux
        return os.cpu_count() or 1
    try:
        return len(os.sched_getaffinity(process))
    except OSError:
        return 0


def _quotas(root: Path) -> Iterator[int]:
    """Whole cores of every CPU quota over this process."""
    for version, group in _groups(root, "cpu"):
        if version == 2:
            quota, _, period = _read(group / "cpu.max").partition(" ")
        else:
            quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):  # else "max", -1, or not bounded at this level
            yield int(quota) // int(period)


def _memory(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes of every control group over this process that limits its memory."""
    for version, group in _groups(root, "memory"):
        if version == 2:
            names = ("memory.max", "memory.current", "inactive_file")
        else:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        limit, used = _read(group / names[0]), _read(group / names[1])
        if limit.isdigit() and int(limit) < 1 << 62:  # version 1 says "none" with the largest number of whole pages
            pages = re.search(rf"^{names[2]} (\d+)$", _read(group / "memory.stat"), re.M)
            spare = int(pages[1]) if pages else 0
            yield int(limit), max(0, int(used) - spare) if used.isdigit() else 0


def _groups(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """(version, folder) of the control groups that this process is in, from its own up to the topmost visible one."""
    own = _own_groups(root)
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, *_, options = after.split() or [""]
        version = {"cgroup2": 2, "cgroup": 1}.get(kind, 0)
        key = "" if version == 2 else controller
        if not version or key not in own or (version == 1 and controller not in options.split(",")):
            continue
        mounted, place = before.split()[3:5]
        inside = _below(own[key], mounted)
        for level in (inside, *inside.parents):
            yield version, root / place.lstrip("/") / level


def _own_groups(root: Path) -> dict[str, str]:
    """The path of this process's group for each controller of version 1, and under "" that of version 2."""
    found: dict[str, str] = {}
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        found |= dict.fromkeys(controllers.split(","), path)
    return found


def _below(group: str, mounted: str) -> PurePosixPath:
    """A group's path below a mount point that shows the hierarchy from `mounted` on.

    A group outside of what is mounted, as in some containers, is seen as the mount point itself.
    """
    path = PurePosixPath(group)
    if ".." in path.parts or not path.is_relative_to(mounted):
        return PurePosixPath()
    return path.relative_to(mounted)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
