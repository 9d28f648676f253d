"""Keeps one server of a service running: start, wait until it serves, watch, restart. One thread each."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ascent.host.open_files import own_shortage
from ascent.rollout.service.metrics import EngineMetrics
from ascent.rollout.service.processes import cpu_ticks
from ascent.rollout.service.record import ReplicaRecord
from ascent.rollout.service.server_log import last_line
from ascent.rollout.service.server_process import Endpoint, ServerProcess
from ascent.rollout.service.settings import ServiceSettings

T = TypeVar("T")
_TICK, _PROBE, _STALL_PROBE, _TELL = 0.2, 1.0, 10.0, 20.0  # seconds between looks
_LONGEST_PAUSE = 30.0
QUIET_SECONDS = 3.0  # without work before a drained server ends: trainings have noticed by then
_BUSY_SHARE, _BUSY_PATIENCE = 0.2, 8.0  # a silent server that uses so much of a core is given so many times longer


class ReplicaWatch(threading.Thread):
    """Watches one server until it is told to end it or the server failed for good; `record` says how it is.

    `changed` is called after every change of `record`, `tell` with sentences for people, `group` with `+` or `-` and
    the process group of a server that was started or is gone.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        command: Sequence[str],
        environment: Mapping[str, str],
        endpoint: Endpoint,
        record: ReplicaRecord,
        *,
        name: str,
        changed: Callable[[], None],
        tell: Callable[[str], None],
        group: Callable[[str, int], None],
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.record = record
        self._settings, self._command, self._environment = settings, command, environment
        self._endpoint = endpoint
        self._stop_event, self._leaving = threading.Event(), threading.Event()
        self._changed, self._tell, self._group = changed, tell, group
        self._restarts: list[float] = []
        self._blind = False

    def end(self) -> None:
        """Have the server and this thread end. Returns at once."""
        self._leaving.set()
        self._stop_event.set()

    def leave(self) -> None:
        """The same, after the server has finished what it is sampling (`drain_seconds` of the settings at most)."""
        self._leaving.set()
        if self.record.state != "ready":
            self._stop_event.set()

    def run(self) -> None:
        """Until the service stops or this server fails for good."""
        served = False
        while not self._stop_event.is_set():
            try:
                server = ServerProcess(self._command, self._environment, Path(self.record.log))
            except OSError as error:
                not_started = f"it can't be started: {own_shortage(error) or error}"
                if not (served and self._may_restart()):
                    self._fail(not_started, served)
                    return
                self._note_restart(not_started)  # want of files or memory may pass
                self._pause()
                continue
            self._group("+", server.pid)
            self._set(pid=server.pid)
            self._tell(f"{self.name}: process {server.pid}; its log is {self.record.log}")
            why = self._wait_until_it_serves(server)
            if why is None and not self._stop_event.is_set():
                served = True
                self._set(state="ready")
                self._tell(f"{self.name}: ready at {self.record.url} after {_age(server):.0f} s")
                why = self._watch(server)
            again = why is not None and served and not self._leaving.is_set() and self._may_restart()
            if why is not None and again:
                self._note_restart(why)
            server.end(0.0 if why else 10.0)
            self._group("-", server.pid)
            if why is not None and not again and not self._leaving.is_set():
                self._fail(why, served)
            if not again:
                return
            self._pause()

    def _wait_until_it_serves(self, server: ServerProcess) -> str | None:
        """None when it serves (or the service stops), otherwise why it won't."""
        told_at = probed_at = time.monotonic()
        while not self._stop_event.wait(_TICK):
            if (ended := _ended(server)) is not None:
                return ended
            now = time.monotonic()
            if now - probed_at >= _PROBE:
                probed_at = now
                # its token makes sure that it is this service's server
                if self._asked(lambda: self._endpoint.guard(2.0)) is not None:
                    return None
            if now - told_at >= _TELL:
                told_at = now
                last = last_line(Path(self.record.log), server.log_start)
                self._tell(f"{self.name}: waiting for it to load the model ({_age(server):.0f} s); it says: {last}")
            if _age(server) > self._settings.start_timeout:
                return f"it did not serve within {self._settings.start_timeout:g} s"
        return None

    def _watch(self, server: ServerProcess) -> str | None:
        """Until the service stops (None) or the server needs a restart (why)."""
        alive_at = probed_at = stall_probed_at = time.monotonic()
        stall, busy = _Stall(self._settings.stalled_after), _Busy(server.pid)
        while not self._stop_event.wait(_TICK):
            if (ended := _ended(server)) is not None:
                return ended
            if self._leaving.is_set():
                self._tell(f"{self.name}: {self._drain(server)}")
                return None
            now = time.monotonic()
            if now - probed_at < _PROBE:
                continue
            status = self._asked(lambda: self._endpoint.status("/health", self._settings.hung_after))
            probed_at = time.monotonic()
            if status == 200:
                alive_at, busy = probed_at, _Busy(server.pid)
            elif status is not None:
                return f"its engine is dead (/health answers {status})"
            elif self._blind:
                alive_at = probed_at
            elif self._hangs(probed_at - alive_at, busy):
                return f"it gave no answer for {probed_at - alive_at:.0f} s"
            if status == 200 and probed_at - stall_probed_at >= _STALL_PROBE:
                stall_probed_at = probed_at
                if stall.seen(self._asked(lambda: self._endpoint.metrics(3.0)), probed_at):
                    return f"its running requests made no token for {self._settings.stalled_after:g} s"
                guard = self._asked(lambda: self._endpoint.guard(3.0)) or {}
                if guard.get("stuck_seconds", 0.0) > self._settings.stuck_after:
                    return "its workers wait for weights that won't come: the trainer gave them up, or is gone"
        return None

    def _drain(self, server: ServerProcess) -> str:
        """Until nothing is sampled any more, and no weights are on their way; why that is over."""
        self._set(state="draining")
        self._tell(f"{self.name}: drained: it takes nothing new")
        began = busy_at = time.monotonic()
        while not self._stop_event.wait(_TICK):
            if (ended := _ended(server)) is not None:
                return ended
            guard = self._asked(lambda: self._endpoint.guard(3.0))
            now = time.monotonic()
            if guard is None or _at_work(guard):
                busy_at = now
            if now - busy_at > QUIET_SECONDS:
                return "nothing is sampled any more"
            if now - began > self._settings.drain_seconds:
                return f"what it still samples after {self._settings.drain_seconds:g} s is broken off"
        return "the service ends"

    def _asked(self, ask: Callable[[], T]) -> T | None:
        """What a server answers; None for no answer, also when this process lacks what it takes to ask (`_blind`)."""
        try:
            answer = ask()
        except OSError as error:
            if not self._blind:
                self._tell(f"{self.name}: this process can't look after it: {error}")
            self._blind = True
            return None
        self._blind = False
        return answer

    def _hangs(self, silent: float, busy: _Busy) -> bool:
        """Whether a server that has been silent for so long hangs, rather than being busy with many requests."""
        patience = self._settings.hung_after * (_BUSY_PATIENCE if busy.now() else 1)
        return silent >= patience

    def _may_restart(self) -> bool:
        now = time.monotonic()
        self._restarts = [at for at in self._restarts if now - at < self._settings.restart_window]
        return len(self._restarts) < self._settings.max_restarts

    def _note_restart(self, why: str) -> None:
        self._restarts.append(time.monotonic())
        self._set(state="restarting", pid=None, restarts=self.record.restarts + 1, why=why)
        self._tell(f"{self.name}: {why}; restart {len(self._restarts)} of at most {self._settings.max_restarts}")

    def _pause(self) -> None:
        """Restart at once the first time, then after 1, 2, 4, ... seconds."""
        if len(self._restarts) > 1:
            self._stop_event.wait(min(_LONGEST_PAUSE, 2.0 ** (len(self._restarts) - 2)))

    def _fail(self, why: str, served: bool) -> None:
        if served:
            minutes = self._settings.restart_window / 60
            why += f"; it was restarted {self._settings.max_restarts} times within {minutes:g} minutes"
        self._set(state="failed", pid=None, why=why)
        self._tell(f"{self.name}: failed: {why}")

    def _set(self, **changes: object) -> None:
        self.record = dataclasses.replace(self.record, **changes)  # type: ignore[arg-type]
        self._changed()


class _Busy:
    """Whether a process has been using the CPU since this was made."""

    def __init__(self, pid: int) -> None:
        self._pid, self._since = pid, time.monotonic()
        self._ticks, _ = cpu_ticks(pid)

    def now(self) -> bool:
        ticks, wants_cpu = cpu_ticks(self._pid)
        used = (ticks - self._ticks) / os.sysconf("SC_CLK_TCK")
        return wants_cpu or used > _BUSY_SHARE * (time.monotonic() - self._since)


class _Stall:
    """Whether an engine that has running requests makes no progress."""

    def __init__(self, after: float) -> None:
        self._after = after
        self._progress: float | None = None
        self._since = 0.0

    def seen(self, metrics: EngineMetrics | None, now: float) -> bool:
        """Take a look at the metrics; True when nothing moved for too long."""
        if metrics is None:
            return False
        progress = metrics.prompt_tokens_total + metrics.generation_tokens_total
        if not metrics.num_requests_running or progress != self._progress:
            self._progress, self._since = progress, now
        return now - self._since > self._after


def _ended(server: ServerProcess) -> str | None:
    code = server.exit_code()
    if code is None:
        return None
    if code < 0:
        return f"process {server.pid} was killed by {signal.Signals(-code).name}"
    return f"process {server.pid} ended with code {code}"


def _at_work(guard: Mapping[str, Any]) -> bool:
    """Whether a server samples, or is being given weights: other servers may wait for it in the same collective."""
    states = [guard["weights"]["state"], *(each["weights"]["state"] for each in guard["adapters"])]
    return bool(guard["running"]) or "updating" in states


def _age(server: ServerProcess) -> float:
    return time.monotonic() - server.started_at
