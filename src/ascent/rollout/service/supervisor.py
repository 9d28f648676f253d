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
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from ascent.errors import InputError
from ascent.host import open_files
from ascent.host.keeper import Keeper
from ascent.rollout.service import record
from ascent.rollout.service.processes import start_ticks
from ascent.rollout.service.scaling import ScaleOrder, scaled, take_order, taken_by_others
from ascent.rollout.service.server_command import (
    gateway_command,
    gateway_environment,
    server_command,
    server_environment,
)
from ascent.rollout.service.server_process import Endpoint
from ascent.rollout.service.settings import ServiceSettings, from_json
from ascent.rollout.service.watch import ReplicaWatch

_GATEWAY_START = 60.0  # seconds


class Supervisor:
    """The servers of one service. `folder` is the service's own, with its settings and token."""

    def __init__(
        self, folder: Path, settings: ServiceSettings, log_folder: Path, token: str, owner: tuple[int, int]
    ) -> None:
        """`owner`: pid and start of the process without which the service ends."""
        self._folder, self._settings, self._owner = folder, settings, owner
        self._stop = threading.Event()
        self._token, self._log_folder = token, log_folder
        self._lock = threading.Lock()
        self._keeper = Keeper()
        ports = _ports(settings, range(settings.replicas))
        self._watches = [self._watch(settings, index, port) for index, port in enumerate(ports)]
        self._gateway = None if settings.gateway is None else self._watch_gateway(settings.gateway)
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
            devices=self._devices(),
        )

    def run(self) -> int:
        """Serve until told to stop; 0 then, 2 when every server failed."""
        self._publish()
        for watch in self._all():
            watch.start()
        while not self._stop.wait(0.2):
            if self._record.state == "failed" or self._abandoned():
                break
            self._scale()
        self._stop.set()
        for watch in self._all():
            watch.end()
        for watch in self._all():
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

    def _scale(self) -> None:
        """Take up an order for another number of replicas, or look how far the last one is."""
        now = self._record.scaling
        if now is not None and now.state == "running":
            return self._go_on_scaling(now)
        try:
            order = take_order(self._folder)
        except (InputError, OSError) as error:
            _tell(f"an order for another number of replicas can't be read: {error}")
            return
        if order is not None:
            self._begin_to_scale(order)

    def _begin_to_scale(self, order: ScaleOrder) -> None:
        change = record.Scaling(order.request, order.replicas)
        try:
            wanted = scaled(self._settings, order, taken_by_others(self._settings.device_kind, self._folder))
            new = range(self._settings.replicas, wanted.replicas)
            ports = _ports(wanted, new)
            started = [self._watch(wanted, index, port) for index, port in zip(new, ports, strict=True)]
        except (InputError, OSError) as error:
            self._scaling(replace(change, state="refused", why=str(error)))
            return
        _tell(f"{wanted.replicas} replicas instead of {self._settings.replicas}")
        self._settings = wanted
        for watch in self._watches[wanted.replicas :]:
            watch.leave()
        with self._lock:
            self._watches += started
            both = dict.fromkeys((*self._record.devices, *self._devices()))  # what ends is on its devices until then
            self._record = replace(self._record, settings=wanted.to_json(), devices=tuple(both))
        self._scaling(change)
        for watch in started:
            watch.start()

    def _go_on_scaling(self, change: record.Scaling) -> None:
        left = [watch for watch in self._watches[change.replicas :] if not watch.is_alive()]
        if left:
            with self._lock:
                self._watches = [watch for watch in self._watches if watch not in left]
            self._changed()
        states = [watch.record.state for watch in self._watches]
        if len(states) > change.replicas or "starting" in states:
            return
        with self._lock:
            self._record = replace(self._record, devices=self._devices())
        failed = [watch for watch in self._watches if watch.record.state == "failed"]
        if failed:
            why = f"{failed[0].name} failed: {failed[0].record.why}. Its log: {failed[0].record.log}"
            self._scaling(replace(change, state="failed", why=why))
        else:
            self._scaling(replace(change, state="done"))

    def _scaling(self, change: record.Scaling) -> None:
        with self._lock:
            self._record = replace(self._record, scaling=change)
        self._changed()

    def _all(self) -> list[ReplicaWatch]:
        return [*self._watches, *([self._gateway] if self._gateway else [])]

    def _devices(self) -> tuple[str, ...]:
        return self._settings.physical_devices(os.environ)

    def _watch(self, settings: ServiceSettings, index: int, port: int) -> ReplicaWatch:
        environment = server_environment(settings, index, self._folder / record.TOKEN, os.environ)
        return self._watch_process(settings, server_command(settings, port), environment, port, f"replica {index}")

    def _watch_gateway(self, wanted: int) -> ReplicaWatch:
        settings = replace(self._settings, start_timeout=_GATEWAY_START)
        port = wanted or _free_ports(settings.host, 1)[0]
        command = gateway_command(settings, self._folder, port)
        return self._watch_process(settings, command, gateway_environment(os.environ), port, "gateway")

    def _watch_process(
        self, settings: ServiceSettings, command: list[str], environment: dict[str, str], port: int, name: str
    ) -> ReplicaWatch:
        near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
        shown = f"[{near}]" if ":" in near else near
        log = self._log_folder / f"{name.replace(' ', '-')}.log"
        return ReplicaWatch(
            settings,
            command,
            environment,
            Endpoint(near, port, self._token),
            record.ReplicaRecord(url=f"http://{shown}:{port}", log=str(log)),
            name=name,
            changed=self._changed,
            tell=_tell,
            group=self._keep,
        )

    def _publish(self) -> None:
        with self._lock:
            replicas = tuple(watch.record for watch in self._watches)
            gateway = self._gateway.record if self._gateway else None
            states = {replica.state for replica in replicas}
            state: Any = "failed" if states == {"failed"} else "ready"
            still = states | ({gateway.state} if gateway else set())
            if "starting" in still and self._record.state == "starting":  # once it was ready, more may come
                state = "starting"
            why = next((replica.why for replica in replicas if replica.state == "failed"), "")
            self._record = replace(self._record, replicas=replicas, gateway=gateway, state=state, why=why)
            record.write(self._folder, self._record)

    def _changed(self) -> None:
        try:
            self._publish()
        except OSError as error:  # a full disk ends no server; the next change is written again
            _tell(f"the record of the service can't be written: {error}")

    def _keep(self, sign: str, group: int) -> None:
        with self._lock:
            self._keeper.tell(sign, group)


def _ports(settings: ServiceSettings, indices: Sequence[int]) -> list[int]:
    """The ports of these replicas; free ones are found by asking the system for all of them at once."""
    if settings.port:
        return [settings.port + index for index in indices]
    return _free_ports(settings.host, len(indices))


def _free_ports(host: str, count: int) -> list[int]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket(family)) for _ in range(count)]
        for probe in probes:
            probe.bind((host, 0))
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
