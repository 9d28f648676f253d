"""Process groups that must not outlive somebody: a keeper, a process of its own, ends them when that one is gone.

A signal at the death of the parent (PR_SET_PDEATHSIG) would miss processes that others started, is sent when a mere
thread of the parent ends, and asks a process that may be stopped or busy. A keeper holds one end of a pipe: however the
other end closes, its groups are asked to end, and killed a few seconds later. It ignores what a terminal sends.

This file is also the keeper's script (run by path, standard library only): `keeper.py [PARENT GROUP]`. Standard input:
lines `+GROUP` and `-GROUP`. It acts at the end of input, or when the process PARENT, which started it, is gone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from typing import Self

_PATIENCE, _LOOK = 5.0, 0.5  # seconds between asking and killing, and between two looks at the parent


class Keeper:
    """Ends the process groups on its list when this process is gone, or closes it (as the end of a `with` does)."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__], stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def tell(self, sign: str, group: int) -> None:
        """Put a group on the list (`+`) or take it off (`-`)."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{sign}{group}\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the groups that are left on the list, and the keeper; returns when they are gone."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def end_with_standard_input() -> None:
    """Have this process and its process group ended when its standard input ends, or when this process is gone.

    Standard input is a pipe whose other end belongs to whom this process must not outlive. Processes in between hand it
    on (a process that is started inherits it). Makes this process the leader of its group.
    """
    if os.getpgrp() != os.getpid():
        os.setpgrp()
    me = str(os.getpid())
    nowhere = subprocess.DEVNULL  # who reads this process's output waits for its end, not for the keeper's
    subprocess.Popen([sys.executable, "-I", __file__, me, me], stdout=nowhere, stderr=nowhere, start_new_session=True)


def main(arguments: list[str]) -> None:
    """Keep the list until the writer or the parent is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = int(arguments[0]) if arguments else None
    groups = {int(group) for group in arguments[1:]}
    rest = b""
    while parent is None or os.getppid() == parent:
        if not select.select([0], [], [], None if parent is None else _LOOK)[0]:
            continue
        read = os.read(0, 65536)
        if not read:
            break
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            group = int(line[1:])
            groups.add(group) if line[:1] == b"+" else groups.discard(group)
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
    main(sys.argv[1:])
