"""One vLLM server as a process group: started, asked how it is, and ended with everything that it started.

When a server's front end dies, vLLM leaves its engine processes behind, with the devices' memory. They stay in the
front end's process group, so the group is what is ended here.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ascent.host.open_files import own_shortage
from ascent.rollout.service.metrics import EngineMetrics, read_metrics
from ascent.rollout.service.processes import group_members

_GRACE, _SETTLE = 10.0, 2.0  # seconds for a front end to end, and for the rest of its group after each step


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens, as its own machine reaches it. Raises OSError for want of something on this side, such as
    open files, which says nothing about the server."""

    host: str
    port: int
    token: str

    def status(self, route: str, timeout: float) -> int | None:
        """The HTTP status of GET `route`; None when there is no answer."""
        answer = self._get(route, timeout)
        return None if answer is None else answer[0]

    def metrics(self, timeout: float) -> EngineMetrics | None:
        """What vLLM reports about its engine; None when there is no answer."""
        answer = self._get("/metrics", timeout)
        return read_metrics(answer[1].decode("utf-8", "replace")) if answer and answer[0] == 200 else None

    def guard(self, timeout: float) -> dict[str, Any] | None:
        """What the server's guard says of itself (`ascent.replica/2`); None when there is no answer."""
        answer = self._get("/ascent/status", timeout)
        return json.loads(answer[1]) if answer and answer[0] == 200 else None

    def _get(self, route: str, timeout: float) -> tuple[int, bytes] | None:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)  # knows no proxies
        try:
            connection.request("GET", route, headers={"Authorization": f"Bearer {self.token}"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            if own_shortage(error):
                raise
            return None
        finally:
            connection.close()


class ServerProcess:
    """A running server. Its output goes to the end of `log`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as output:
            self.log_start = output.tell()
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started_at = time.monotonic()

    @property
    def pid(self) -> int:
        """The front end's process, and the number of the group."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal, as `subprocess` has it."""
        return self._process.poll()

    def end(self, grace: float = _GRACE) -> None:
        """Ask the front end to end, within `grace` seconds; then ask what is left of its group; then kill it.

        The steps in between let Python's resource tracker remove shared memory, which a kill would leave behind.
        """
        if grace and self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace)
            self._wait_for_group()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)
            self._wait_for_group()
        self._process.wait()

    def _wait_for_group(self) -> None:
        until = time.monotonic() + _SETTLE
        while (self._process.poll() is None or group_members(self.pid)) and time.monotonic() < until:
            time.sleep(0.05)
