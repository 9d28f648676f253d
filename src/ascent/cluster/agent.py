"""The agent: one actor for each place of a run on a node. It starts processes there, and they end with it.

They end when the agent ends, when its node's Ray (the raylet, its parent process) is gone or stands still, and when the
driver no longer asks how it is (`lease`). A keeper sees to that, a process of its own, so that what an agent started
neither outlives it in a session of its own, nor goes on while it hangs. The agent knows nothing of what it starts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ascent.cluster.lease import BEAT, LEASE
from ascent.cluster.logs import Line, Tail
from ascent.cluster.process_environment import (
    check_interface,
    give_back_priority,
    interface_of,
    process_environment,
    threads_of_each,
)
from ascent.errors import InputError
from ascent.host.keeper import Keeper
from ascent.training.launch.stop_file import STOP_FILE_VARIABLE, stopped_mark

_ENDING = 10.0  # seconds in which a process that is asked to end may do so


@dataclass(frozen=True, slots=True)
class Job:
    """A process to start. `processes`: how many it makes of itself that compute; `log`: where it prints; `follow`:
    further files that show what it does, with the name of each; `first_line`: what it is told on its standard input,
    which stays open as long as it may run; `joins`: whether it belongs to the cluster itself."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: str
    processes: int = 1
    follow: tuple[tuple[str, str], ...] = ()
    first_line: str = ""
    joins: bool = False


@dataclass(frozen=True, slots=True)
class State:
    """How a job is: `code` is None while it runs; `stopped`: it says that it was stopped before its end."""

    code: int | None
    stopped: bool


@dataclass(frozen=True, slots=True)
class Beat:
    """What an agent answers once a second. `ended`: why it has ended everything by itself; None: it hasn't."""

    jobs: Mapping[str, State]
    lines: tuple[Line, ...]
    ended: str | None


@dataclass(slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    tails: list[Tail]
    folder: Path  # with its stop file


class Agent:
    """The actor. Its calls come from one driver, in several threads."""

    def __init__(self, address: str, kind: str, cpus: int, interface: str | None) -> None:
        """`address`: the node's; `kind` and `cpus`: what is held here for the run."""
        self._address, self._kind, self._cpus, self._interface = address, kind, cpus, interface
        self._lock = threading.Lock()
        self._jobs: dict[str, _Running] = {}
        self._notes: list[Line] = []
        self._ending = False
        self._keeper = Keeper()
        self._keeper.watch(os.getppid())
        self._keeper.renew(LEASE)
        threading.Thread(target=self._end_with_keeper, daemon=True).start()

    def beat(self) -> Beat:
        """How its jobs are, and what they printed. Renews the lease."""
        with self._lock:
            ended = self._keeper.acted()
            if ended is None:
                self._keeper.renew(LEASE)
            states = {name: _state(job) for name, job in self._jobs.items()}
            lines, self._notes = self._notes, []
            for name, job in self._jobs.items():
                for tail in job.tails:
                    lines += tail.new_lines(to_the_end=states[name].code is not None)
        return Beat(states, tuple(lines), ended)

    def sees(self, path: str, content: str) -> bool:
        """Whether a file is there on this node too, with this content: whether a folder is shared."""
        try:
            return Path(path).read_text(encoding="ascii") == content
        except (OSError, ValueError):
            return False

    def free_port(self, first: int, last: int, but: frozenset[int] = frozenset()) -> int:
        """A port of the node's address at which nobody listens. Raises InputError where there is none."""
        family = socket.AF_INET6 if ":" in self._address else socket.AF_INET
        for port in range(first, last + 1):
            if port in but:
                continue
            with socket.socket(family) as probe, contextlib.suppress(OSError):
                # At every address, as a rendezvous does, and without SO_REUSEADDR: with it a port seems free that a
                # server has bound and doesn't listen at yet.
                probe.bind(("", port))
                return port
        raise InputError(
            f"node {self._address}: none of the ports {first}-{last} is free", "Give cluster.ports others, or more."
        )

    def start(self, job: Job) -> None:
        """Start a process. Raises InputError where this node hasn't the interface that is needed."""
        from ray import get_runtime_context

        if self._interface is not None:
            check_interface(self._interface)
        name = {"npu": "NPU", "cuda": "GPU"}.get(self._kind, "")
        devices = get_runtime_context().get_accelerator_ids().get(name, [])
        folder = Path(tempfile.mkdtemp(prefix="ascent-"))
        environment = process_environment(
            os.environ,
            kind=self._kind,
            devices=devices,
            interface=self._interface or interface_of(self._address),
            threads=threads_of_each(self._cpus, job.processes),
            joins=job.joins,
        )
        environment |= {STOP_FILE_VARIABLE: str(folder / "stop"), **job.environment}
        log = Path(job.log)
        log.parent.mkdir(parents=True, exist_ok=True)
        tails = [Tail(log, job.name), *(Tail(Path(path), source) for source, path in job.follow)]
        with open(log, "ab") as output:
            process = subprocess.Popen(
                job.command,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        with self._lock:
            self._keeper.tell("+", process.pid)
            if note := give_back_priority(process.pid):
                self._notes.append(Line(job.name, note))
            self._jobs[job.name] = _Running(process, tails, folder)
        if job.first_line:
            assert process.stdin is not None
            process.stdin.write(job.first_line.encode() + b"\n")
            process.stdin.flush()

    def ask_to_stop(self, name: str) -> None:
        """Ask a training to stop after its step."""
        with self._lock:
            (self._jobs[name].folder / "stop").touch()

    def end(self) -> None:
        """End all jobs; returns when they are gone."""
        with self._lock:
            self._ending = True
            jobs = list(self._jobs.values())
        for job in jobs:
            assert job.process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                job.process.stdin.close()  # whoever inherited it ends with it, in whatever session
            if job.process.poll() is None:
                job.process.terminate()
        until = time.monotonic() + _ENDING
        for job in jobs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(max(0.0, until - time.monotonic()))
        self._keeper.close()
        for job in jobs:
            job.process.wait()
            shutil.rmtree(job.folder, ignore_errors=True)

    def _end_with_keeper(self) -> None:
        """When the keeper has ended the jobs there is nothing left to do here but to say so."""
        while self._keeper.acted() is None:
            time.sleep(0.5)
        time.sleep(2 * BEAT)
        if not self._ending:
            os._exit(1)


def _state(job: _Running) -> State:
    code = job.process.poll()
    return State(code, stopped_mark(job.folder / "stop").exists())
