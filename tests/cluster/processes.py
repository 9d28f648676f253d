"""The processes of a run and of Ray on this machine, as /proc shows them."""

from __future__ import annotations

from pathlib import Path

from ascent.tracking import attempts

_WORKER = "ascent.training.launch.worker"


def ranks(run: Path, attempt: int) -> dict[int, int]:
    """The ranks of an attempt that are there: rank -> process."""
    found = {}
    wanted = f"{attempt}:{run.absolute()}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            pairs = [each.partition(b"=") for each in (entry / "environ").read_bytes().split(b"\0")]
        except OSError:
            continue
        variables = {name: value for name, _, value in pairs}
        is_worker = _WORKER.encode() in command and b"elastic" not in command and b"RANK" in variables
        if is_worker and variables.get(attempts.VARIABLE.encode()) == wanted:
            found[int(variables[b"RANK"])] = int(entry.name)
    return found


def replicas() -> list[int]:
    """The processes that keep servers of a cluster."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and b"ascent.cluster.replica" in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def raylet_of(process: int) -> int:
    """The node process of Ray from which a process descends."""
    while process > 1:
        stat = Path(f"/proc/{process}/stat").read_text()
        if "(raylet)" in stat:
            return process
        process = int(stat.rpartition(")")[2].split()[1])
    raise AssertionError("it descends from no raylet")
