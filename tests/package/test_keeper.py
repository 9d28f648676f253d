"""A keeper ends what it keeps when its lease runs out, and when the process that it watches is gone or stands still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from tests.waiting import wait_until

from ascent.host.keeper import Keeper
from ascent.rollout.service.processes import start_ticks

_SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(_SLEEP, start_new_session=True) as process:
        yield process
        process.kill()


@pytest.fixture
def watched() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(_SLEEP) as process:
        yield process
        process.kill()


def test_a_lease_that_is_renewed_holds_and_one_that_runs_out_ends_everything(child: subprocess.Popen[bytes]) -> None:
    with Keeper() as keeper:
        keeper.tell("+", child.pid)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            keeper.renew(1.5)
            time.sleep(0.2)
        assert child.poll() is None
        assert keeper.acted() is None
        wait_until(lambda: child.poll() is not None, "the end of the child")
        wait_until(lambda: keeper.acted() == "the lease ran out", "the keeper's reason")


def test_a_lease_runs_out_although_its_holder_stands_still(child: subprocess.Popen[bytes]) -> None:
    """As an agent that hangs: the keeper needs nothing of it."""
    code = f"""
import os, signal
from ascent.host.keeper import Keeper
keeper = Keeper()
keeper.tell("+", {child.pid})
keeper.renew(1.0)
os.kill(os.getpid(), signal.SIGSTOP)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as holder:
        wait_until(lambda: child.poll() is not None, "the end of the child")
        assert holder.poll() is None
        holder.kill()


def test_the_end_of_a_watched_process_ends_everything(
    child: subprocess.Popen[bytes], watched: subprocess.Popen[bytes]
) -> None:
    with Keeper() as keeper:
        keeper.watch(watched.pid)
        keeper.tell("+", child.pid)
        time.sleep(1.2)
        assert child.poll() is None
        os.kill(watched.pid, signal.SIGKILL)  # what is left of it is reaped only at the end of the test
        wait_until(lambda: child.poll() is not None, "the end of the child")
        wait_until(lambda: keeper.acted() == "the watched process is gone", "the keeper's reason")
    assert start_ticks(child.pid) is None


def test_a_watched_process_that_stands_still_ends_everything(
    child: subprocess.Popen[bytes], watched: subprocess.Popen[bytes]
) -> None:
    with Keeper() as keeper:
        keeper.watch(watched.pid)
        keeper.tell("+", child.pid)
        os.kill(watched.pid, signal.SIGSTOP)
        wait_until(lambda: keeper.acted() == "the watched process stands still", "the keeper's reason")
        assert child.wait(5) == -signal.SIGTERM
