"""`python -m ascent.rollout.service.supervisor FOLDER`: starts the servers of a service and keeps them running.

A process of its own, so that nothing that happens to a trainer disturbs the servers. It ends, and the servers with it,
on SIGTERM or SIGINT, when its standard input ends, or when the process that started it is gone. When it is killed
itself, its `Keeper` ends the servers.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from ascent.host import open_files
from ascent.host.keeper import Keeper
from ascent.rollout.service import record
from ascent.rollout.service.processes import start_ticks
from ascent.rollout.service.server_command import server_command, server_environment
from ascent.rollout.service.server_process import Endpoint
from ascent.rollout.service.settings import ServiceSettings, from_json
from ascent.rollout.service.watch import ReplicaWatch


class Supervisor:
    """The servers of one service. `folder` is the service's own, with its settings and token."""

    def __init__(
        self, folder: Path, settings: ServiceSettings, log_folder: Path, token: str, owner: tuple[int, int]
    ) -> None:
        """`owner`: pid and start of the process without which the service ends."""
        self._folder, self._settings, self._owner = folder, settings, owner
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._keeper = Keeper()
        ports = enumerate(_ports(settings))
        self._watches = [self._watch(index, port, log_folder, token) for index, port in ports]
        self._record = record.ServiceRecord(
            name=folder.name,
            pid=os.getpid(),
            started=start_ticks(os.getpid()) or 0,
            model=settings.engine.model,
            max_model_len=settings.engine.max_model_len,
            token=token,
            transport=settings.transport,
            settings=settings.to_json(),
            replicas=(),
            devices=settings.physical_devices(os.environ),
        )

    def run(self) -> int:
        """Serve until told to stop; 0 then, 2 when every server failed."""
        self._publish()
        for watch in self._watches:
            watch.start()
        while not self._stop.wait(0.2):
            if self._record.state == "failed" or self._abandoned():
                break
        self._stop.set()
        for watch in self._watches:
            watch.join()
        self._keeper.close()
        if self._record.state == "failed":
            return 2  # the record stays, so that clients see why
        shutil.rmtree(self._folder)
        return 0

    def stop(self) -> None:
        """End the servers and make `run` return. Returns at once."""
        self._stop.set()

    def _abandoned(self) -> bool:
        try:
            return start_ticks(self._owner[0]) != self._owner[1]
        except OSError:  # too many open files, perhaps; its end of our standard input tells as well
            return False

    def _watch(self, index: int, port: int, log_folder: Path, token: str) -> ReplicaWatch:
        settings = self._settings
        near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
        shown = f"[{near}]" if ":" in near else near
        return ReplicaWatch(
            settings,
            server_command(settings, port),
            server_environment(settings, index, self._folder / record.TOKEN, os.environ),
            Endpoint(near, port, token),
            record.ReplicaRecord(url=f"http://{shown}:{port}", log=str(log_folder / f"replica-{index}.log")),
            name=f"replica {index}",
            stop=self._stop,
            changed=self._changed,
            tell=_tell,
            group=self._keep,
        )

    def _publish(self) -> None:
        with self._lock:
            replicas = tuple(watch.record for watch in self._watches)
            states = {replica.state for replica in replicas}
            state: Any = "failed" if states == {"failed"} else "starting" if "starting" in states else "ready"
            why = next((replica.why for replica in replicas if replica.state == "failed"), "")
            self._record = replace(self._record, replicas=replicas, state=state, why=why)
            record.write(self._folder, self._record)

    def _changed(self) -> None:
        try:
            self._publish()
        except OSError as error:  # a full disk ends no server; the next change is written again
            _tell(f"the record of the service can't be written: {error}")

    def _keep(self, sign: str, group: int) -> None:
        with self._lock:
            self._keeper.tell(sign, group)


def _ports(settings: ServiceSettings) -> list[int]:
    """The ports of the replicas; free ones are found by asking the system for all of them at once."""
    if settings.port:
        return [settings.port + index for index in range(settings.replicas)]
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket(family)) for _ in range(settings.replicas)]
        for probe in probes:
            probe.bind((settings.host, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def _tell(sentence: str) -> None:
    with contextlib.suppress(OSError):  # who reads it may be gone; the service goes on
        print(sentence, file=sys.stderr, flush=True)


def _stop_at_end_of_input(supervisor: Supervisor) -> None:
    while os.read(0, 4096):
        pass
    supervisor.stop()


def main() -> int:
    """Serve as `settings.json` in the folder says; the exit code."""
    open_files.raise_limit()
    folder = Path(sys.argv[1])
    values = json.loads((folder / record.SETTINGS).read_text(encoding="utf-8"))
    token = (folder / record.TOKEN).read_text(encoding="ascii").strip()
    log_folder, owner = Path(values["log_folder"]), (values["owner"]["pid"], values["owner"]["started"])
    supervisor = Supervisor(folder, from_json(values["settings"]), log_folder, token, owner)

    def stop(number: int, frame: FrameType | None) -> None:
        supervisor.stop()

    def stop_after_error(error: threading.ExceptHookArgs) -> None:
        threading.__excepthook__(error)
        supervisor.stop()  # rather none than servers that nobody watches

    threading.excepthook = stop_after_error

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    threading.Thread(target=_stop_at_end_of_input, args=(supervisor,), daemon=True).start()
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main())
