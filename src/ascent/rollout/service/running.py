"""Starts the processes of a service, and stops them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from ascent.errors import InputError
from ascent.rollout.in_vllm.plugin import HTTP_BACKEND, SHM_BACKEND
from ascent.rollout.prerequisites import check_cpu_engine
from ascent.rollout.service import record
from ascent.rollout.service.address import ServiceAddress, from_record
from ascent.rollout.service.processes import start_ticks
from ascent.rollout.service.server_log import excerpt, log_text
from ascent.rollout.service.settings import ServiceSettings, check
from ascent.rollout.service.sharing import refuse_taken_devices
from ascent.rollout.weights.transports.choice import backend

_STOP_SECONDS = 40.0


class ServiceStartError(RuntimeError):
    """A service did not start. `log_text` is what to show of the log of the server concerned, `whole_log` the log
    itself, for whoever looks for the cause."""

    def __init__(self, message: str, whole_log: str = "") -> None:
        super().__init__(message)
        self.whole_log = whole_log
        self.log_text = excerpt(whole_log)


@contextlib.contextmanager
def running_service(
    settings: ServiceSettings,
    *,
    name: str,
    log_folder: Path | None = None,
    api_key: str | None = None,
    share_devices: bool = False,
) -> Iterator[ServiceAddress]:
    """Start a service, wait until every server serves, and stop it at the end of the block.

    Its supervisor is a process of its own and ends when this process ends, however that happens. Progress is told on
    standard error; logs go to the end of `log_folder/replica-N.log`. The default is `logs_folder()/NAME`, where those
    of the last start become `replica-N.log.1`. The record of a service that served and failed stays, for its clients.
    Raises InputError for settings that can't be served, or for devices that another service of this user has (unless
    `share_devices`), and ServiceStartError when a server doesn't start.
    """
    check(settings, api_key)
    if settings.device_kind == "cpu":
        check_cpu_engine()
    if settings.transport is not None and backend(settings.transport) in (SHM_BACKEND, HTTP_BACKEND):
        _check_plugin()
    if not share_devices:
        refuse_taken_devices(settings)
    folder = record.claim(name)
    token = api_key or secrets.token_hex(24)
    record.write_private(folder / record.TOKEN, token + "\n")
    logs = log_folder or logs_folder() / name
    logs.mkdir(parents=True, exist_ok=True)
    for log in (*logs.glob("replica-*.log"), *logs.glob("gateway.log")) if log_folder is None else ():
        log.rename(f"{log}.1")
    owner = {"pid": os.getpid(), "started": start_ticks(os.getpid())}
    for_the_supervisor = {"settings": settings.to_json(), "log_folder": str(logs.absolute()), "owner": owner}
    record.write_private(folder / record.SETTINGS, json.dumps(for_the_supervisor))
    command = [sys.executable, "-m", "ascent.rollout.service.supervisor", str(folder)]
    supervisor = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    served = False
    try:
        address = _wait_until_ready(supervisor, folder)
        served = True
        yield address
    finally:
        _stop(supervisor)
        if not served:
            shutil.rmtree(folder, ignore_errors=True)


def logs_folder() -> Path:
    """Where the logs of standing services are kept, one folder for each name."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "ascent" / "serve"


def _check_plugin() -> None:
    """Raise InputError when vLLM wouldn't find what receives weights from shared memory or over HTTP."""
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and "ascent" not in allowed.split(","):
        raise InputError(
            f"VLLM_PLUGINS={allowed} lets no other plug-in load, so vLLM can't receive weights",
            "Unset it, or add: ascent",
        )
    if "ascent" not in metadata.entry_points(group="vllm.general_plugins").names:
        raise InputError(
            "vLLM wouldn't find Ascent's plug-in, which receives weights: the installed package doesn't name it",
            "Install it again (pip install --no-deps --no-build-isolation -e .), and remove old folders "
            "ascent_grpo.egg-info beside the source.",
        )


def wait_until_it_ends(address: ServiceAddress) -> tuple[str, str]:
    """Wait until a service of this machine has ended: why, and the log concerned; both empty when it was stopped."""
    assert address.folder is not None
    while (found := record.read(address.folder)) is not None and found.alive():
        time.sleep(0.3)
    if found is None:
        return "", ""
    failed = [replica for replica in found.replicas if replica.state == "failed"]
    if not failed:
        return f"its supervisor (process {found.pid}) is gone", ""
    return f"{failed[0].why}\n  log: {failed[0].log}", log_text(Path(failed[0].log))


def stop_service(name: str) -> None:
    """Stop a service of this machine, whoever started it, with whichever version of Ascent. Raises InputError when none
    has this name."""
    folder = record.services_folder() / name
    found = record.read_any(folder)
    if found is None:
        raise InputError(f"no service named {name!r} on this machine", "ascent serve --status lists them.")
    if found.alive():
        os.kill(found.pid, signal.SIGTERM)
        until = time.monotonic() + _STOP_SECONDS
        while found.alive():
            if time.monotonic() > until:
                raise InputError(f"service {name} (process {found.pid}) does not stop", f"Insist: kill -9 {found.pid}")
            time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


def _wait_until_ready(supervisor: subprocess.Popen[bytes], folder: Path) -> ServiceAddress:
    while True:
        found = record.read(folder)
        gateway = [found.gateway] if found and found.gateway else []
        failed = [each for each in (*found.replicas, *gateway) if each.state == "failed"] if found else []
        if failed:
            log = failed[0].log
            raise ServiceStartError(f"the server did not start: {failed[0].why}\n  log: {log}", log_text(Path(log)))
        if found is not None and found.state == "ready":
            return from_record(folder, found)
        if supervisor.poll() is not None:
            raise ServiceStartError(f"the service's supervisor ended with code {supervisor.returncode}")
        time.sleep(0.2)


def _stop(supervisor: subprocess.Popen[bytes]) -> None:
    assert supervisor.stdin is not None
    supervisor.stdin.close()
    try:
        supervisor.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        supervisor.kill()  # its keeper ends the servers
        supervisor.wait()
