"""Which ports are for whom, so that a firewall can be told and nothing meets on one.

Ray's are fixed here: those it picks itself lie anywhere above 1024, also where ranks want to listen.
"""

from __future__ import annotations

import re

from ascent.errors import InputError

HEAD = 6379
NODE_MANAGER, OBJECT_MANAGER, AGENT, AGENT_HTTP, RUNTIME_ENV_AGENT, METRICS = range(6380, 6386)
WORKERS = range(10010, 11010)  # one a worker process of Ray
HCCL_HOST = range(60000, 60064)  # one a process and group that meet on the host
HCCL_CARD = range(16666, 16698)  # on the card's own network interface
_LEAST = 16  # of a run: a rendezvous for each attempt, servers, weights
_USED = {
    "Ray's": range(HEAD, METRICS + 1),
    "Ray's workers'": WORKERS,
    "HCCL's": HCCL_HOST,
}


def port_range(given: str, key: str = "cluster.ports") -> range:
    """The ports of `FIRST-LAST`. Raises InputError for one that is none, is too small, or holds ports of others."""
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", given)
    if found is None:
        raise InputError(f"{key}={given}: expected FIRST-LAST, such as 29400-29499")
    first, last = int(found[1]), int(found[2])
    if not 1024 <= first <= last <= 65535:
        raise InputError(f"{key}={given}: expected ports from 1024 to 65535, the smaller one first")
    if last - first + 1 < _LEAST:
        raise InputError(f"{key}={given}: {last - first + 1} ports; a run listens at up to {_LEAST}")
    for whose, used in _USED.items():
        if first < used.stop and used.start <= last:
            raise InputError(f"{key}={given} holds {whose} ports {shown(used)}", "Take others, such as 29400-29499.")
    return range(first, last + 1)


def taken() -> set[int]:
    """All that Ray's own processes and HCCL listen at, beside the head's port."""
    return {*range(NODE_MANAGER, METRICS + 1), *WORKERS, *HCCL_HOST}


def shown(ports: range) -> str:
    """`FIRST-LAST`."""
    return f"{ports.start}-{ports.stop - 1}"
