"""Each check runs in a process of its own, so that a crash or a hang ends that check alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ascent.host.keeper import Keeper

_KEPT_LINES = 12


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended. `code` is None when its time was up, or when it was killed on purpose."""

    code: int | None
    output: str
    seconds: float

    @property
    def last_lines(self) -> str:
        """The end of its output."""
        return "\n".join([line for line in self.output.splitlines() if line.strip()][-_KEPT_LINES:])


def run_child(
    arguments: Sequence[str],
    log: Path,
    seconds: float,
    *,
    on_cpu: bool,
    kill_when: Callable[[], bool] = lambda: False,
) -> Ended:
    """Run `python -m ARGUMENTS`; its output goes to `log`. With `on_cpu` it uses no accelerator.

    Its whole process group is killed when `seconds` have passed, or as soon as `kill_when()` is true; it ends when this
    process is gone.
    """
    environment = dict(os.environ)
    if on_cpu:
        environment |= {"ACCELERATE_USE_CPU": "true"}
    begun = time.monotonic()
    code: int | None = None
    with Keeper() as keeper, log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        keeper.tell("+", process.pid)
        try:
            while time.monotonic() - begun < seconds and not kill_when():
                try:
                    code = process.wait(0.02)
                    break
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return Ended(code, log.read_text(encoding="utf-8", errors="replace"), time.monotonic() - begun)
