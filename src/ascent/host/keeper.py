"""Process groups that must not outlive somebody: a keeper, a process of its own, ends them when that one is gone.

A signal at the death of the parent (PR_SET_PDEATHSIG) would miss processes that others started, is sent when a mere
thread of the parent ends, and asks a process that may be stopped or busy. A keeper holds one end of a pipe: however the
other end closes, its groups are asked to end, and killed a few seconds later. It ignores what a terminal sends.

This file is also the keeper's script (run by path, standard library only): `keeper.py [PARENT GROUP]`. Standard input:
lines `+GROUP` and `-GROUP`; `^PROCESS`, which must be there as well; `=SECONDS`, a lease, within which another such
line must come. It acts at the end of input, when the lease runs out, when PROCESS is gone or stands still, or when the
process PARENT, which started it, is gone.
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
_STOPPED = 5.0  # seconds for which a watched process may stand still (SIGSTOP)
# why the keeper acted, where it says so: its exit code, in words
REASONS = {3: "the lease ran out", 4: "the watched process is gone", 5: "the watched process stands still"}


class Keeper:
    """Ends the process groups on its list when this process is gone, or closes it (as the end of a `with` does)."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__], stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def tell(self, sign: str, group: int) -> None:
        """Put a group on the list (`+`) or take it off (`-`)."""
        self._write(f"{sign}{group}")

    def watch(self, process: int) -> None:
        """Act as well when this process is gone, or has stood still for some seconds."""
        self._write(f"^{process}")

    def renew(self, seconds: float) -> None:
        """Act as well when this isn't called again within `seconds`, whatever became of this process meanwhile."""
        self._write(f"={seconds}")

    def acted(self) -> str | None:
        """Why the groups were ended, in words; None as long as they are kept."""
        code = self._process.poll()
        return None if code is None else REASONS.get(code, "the keeper has ended")

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
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


def main(arguments: list[str]) -> int:
    """Keep the list until there is a reason to act; then act. The exit code is one of REASONS, or 0."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    kept = _Kept(int(arguments[0]) if arguments else None, {int(group) for group in arguments[1:]})
    rest, code = b"", None
    while code is None:
        if select.select([0], [], [], _LOOK if kept.looks else None)[0]:
            read = os.read(0, 65536)
            if not read:
                break
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                kept.told(line.decode("ascii"))
        code = kept.reason()
    for number in (signal.SIGTERM, signal.SIGCONT):
        _signal(kept.groups, number)
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and any(_exists(group) for group in kept.groups):
        time.sleep(0.1)
    _signal(kept.groups, signal.SIGKILL)
    return code or 0


class _Kept:
    """The keeper's list, and what it depends on."""

    def __init__(self, parent: int | None, groups: set[int]) -> None:
        self.groups = groups
        self._parent = parent
        self._watched: tuple[int, str | None] | None = None  # a process, and when it started
        self._moved_at = 0.0  # when it was last seen not to stand still
        self._lease: float | None = None

    @property
    def looks(self) -> bool:
        """Whether there is something to look at from time to time."""
        return any(each is not None for each in (self._parent, self._watched, self._lease))

    def told(self, line: str) -> None:
        """Take in a line."""
        sign, value = line[:1], line[1:]
        if sign == "+":
            self.groups.add(int(value))
        elif sign == "-":
            self.groups.discard(int(value))
        elif sign == "^":
            self._watched, self._moved_at = (int(value), _process(int(value))[1]), time.monotonic()
        elif sign == "=":
            self._lease = time.monotonic() + float(value)

    def reason(self) -> int | None:
        """Why to act now, as an exit code; None: there is no reason."""
        now = time.monotonic()
        if self._parent is not None and os.getppid() != self._parent:
            return 0
        if self._lease is not None and now > self._lease:
            return 3
        if self._watched is None:
            return None
        state, started = _process(self._watched[0])
        if started is None or started != self._watched[1]:
            return 4
        if state not in "Tt":
            self._moved_at = now
        return 5 if now - self._moved_at > _STOPPED else None


def _process(pid: int) -> tuple[str, str | None]:
    """The state of a process, and when it started: None for one that is gone, or that only waits to be reaped."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "", None
    return fields[0], None if fields[0] in "ZX" else fields[19]


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
    sys.exit(main(sys.argv[1:]))
