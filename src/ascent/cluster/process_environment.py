"""The environment of a run's processes on a node: the node's own, with its devices, interface and threads."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping, Sequence

from ascent.devices import VISIBLE_VARIABLES
from ascent.errors import InputError
from ascent.host.machine_share import usable_cores

# by these gloo, HCCL, NCCL and TensorPipe find the way to other nodes; a guess of theirs may wait for ever
_INTERFACE = ("GLOO_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
# What Ray has set for its own workers. A server that finds RAY_* would take Ray for its processes.
_TOKEN = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_OF_RAY = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT")


def process_environment(
    outer: Mapping[str, str],
    *,
    kind: str,
    devices: Sequence[str],
    interface: str,
    threads: int,
    joins: bool,
) -> dict[str, str]:
    """The environment, from the agent's own (`outer`).

    `devices`: the names by which the driver knows the devices that are ours; on cpu none. `interface`: of the network
    between nodes; what the node's own environment says of it stays where it is empty. `threads`: of each process.
    `joins`: whether the process belongs to the cluster itself, and so needs its token.
    """
    kept = {k: v for k, v in outer.items() if not k.startswith("RAY_") and k not in _OF_RAY}
    if joins:
        kept |= {name: outer[name] for name in _TOKEN if name in outer}
    if kind in VISIBLE_VARIABLES:
        kept[VISIBLE_VARIABLES[kind]] = ",".join(sorted(devices, key=_as_number))
    if interface:
        kept |= dict.fromkeys(_INTERFACE, interface)
    return kept | {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}


def threads_of_each(cpus: int, processes: int) -> int:
    """Threads of each of a place's processes: its cores, as far as this machine lets us use them, shared evenly."""
    return max(1, min(cpus, usable_cores()) // max(1, processes))


def interface_of(address: str) -> str:
    """The network interface of this machine that has an address. Raises InputError where none has it."""
    import psutil

    wanted = ipaddress.ip_address(address)
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            text = str(each.address).partition("%")[0]
            try:
                if ipaddress.ip_address(text) == wanted:
                    return str(name)
            except ValueError:  # a hardware address
                continue
    raise InputError(
        f"node {address}: none of its network interfaces has the address that Ray has for it",
        "Start its node with --node-ip-address, or name the interface in cluster.interface.",
    )


def check_interface(name: str) -> None:
    """Raise InputError where this machine has no such interface."""
    import psutil

    known = sorted(psutil.net_if_addrs())
    if name not in known:
        raise InputError(f"cluster.interface={name}: this node has {', '.join(known)}", "Name one that all nodes have.")


def give_back_priority(process: int) -> str:
    """Undo for a process that Ray has its workers run at a lower priority (niceness 15); a note where that can't be."""
    if os.getpriority(os.PRIO_PROCESS, process) <= 0:
        return ""
    try:
        os.setpriority(os.PRIO_PROCESS, process, 0)
    except PermissionError:
        return (
            f"runs at niceness {os.getpriority(os.PRIO_PROCESS, process)}, and may not change that: start this node's "
            "Ray with RAY_worker_niceness=0"
        )
    return ""


def _as_number(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (1 << 30, name)
