"""Processes as /proc shows them. Standard library only.

Raises OSError when /proc can't be read for another reason than that a process is gone, such as too many open files.
"""

from __future__ import annotations

from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is no such process (or only its remains)."""
    fields = _stat(Path(f"/proc/{pid}"))
    return None if fields is None else int(fields[19])


def cpu_ticks(pid: int) -> tuple[int, bool]:
    """Clock ticks of CPU time that a process has used, and whether it wants the CPU right now (or may want it, where
    that can't be seen)."""
    try:
        fields = _stat(Path(f"/proc/{pid}"))
    except OSError:
        return 0, True
    return (0, False) if fields is None else (int(fields[11]) + int(fields[12]), fields[0] == "R")


def group_members(group: int) -> list[int]:
    """The processes of a process group that are not merely waiting to be reaped."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(entry)) is not None and int(fields[2]) == group:
            members.append(int(entry.name))
    return members


def _stat(entry: Path) -> list[str] | None:
    """The fields after the command of `/proc/PID/stat`; None for what is gone or a zombie."""
    try:
        stat = (entry / "stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields
