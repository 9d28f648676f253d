"""Outlives a supervisor that was killed: ends its servers. A script of the standard library, run by path.

Standard input: lines `+GROUP` and `-GROUP`, process groups that must not outlive the writer. At the end of input the
groups that are left are asked to end, and killed a few seconds later.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

_PATIENCE = 5.0


def main() -> None:
    """Keep the list of groups until the writer is gone, then end those that are left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        groups.add(group) if line[0] == "+" else groups.discard(group)
    for number in (signal.SIGTERM, signal.SIGCONT):
        _signal(groups, number)
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and any(_exists(group) for group in groups):
        time.sleep(0.1)
    _signal(groups, signal.SIGKILL)


def _signal(groups: set[int], number: int) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def _exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
