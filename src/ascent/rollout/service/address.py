"""Where a service is and what opens it: all that a trainer needs to use one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ascent.errors import InputError
from ascent.rollout.service import record, servers_file


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """`folder` is the service's own on this machine; None for one on another machine, of which only its servers are
    known. `transport` (a name of `ascent.tables.TRANSPORTS`) and `dtype` are None where they are unknown. `servers`: a
    file that tells where the servers are now, where they may move (see `placed`)."""

    name: str
    urls: tuple[str, ...]
    token: str = field(repr=False)
    folder: Path | None = None
    model: str | None = None
    transport: str | None = None
    dtype: str | None = None
    gateway: str | None = None  # the address in front of all servers
    adapters: int = 0  # LoRA adapters that it serves at once; 0 also where that is unknown
    servers: Path | None = None


def from_record(folder: Path, found: record.ServiceRecord) -> ServiceAddress:
    """The address of a service on this machine."""
    urls = tuple(replica.url for replica in found.replicas)
    dtype = found.settings["engine"]["dtype"]
    adapters = found.settings.get("adapters", 0)
    gateway = found.gateway.url if found.gateway else None
    return ServiceAddress(found.name, urls, found.token, folder, found.model, found.transport, dtype, gateway, adapters)


def standing_service(service: str) -> ServiceAddress:
    """The service that stands, by its name on this machine, by the URLs of its servers, with commas, or by the file
    `servers.json` of one over a cluster.

    The API key of one on another machine is taken from ASCENT_API_KEY. Raises InputError when there is none.
    """
    if Path(service).name == servers_file.SERVERS:
        return _by_file(Path(service))
    if "://" not in service:
        return find_service(service)
    urls = [url.strip() for url in service.split(",")]
    return find_by_urls(urls) or remote_service(urls, os.environ.get("ASCENT_API_KEY", ""))


def _by_file(file: Path) -> ServiceAddress:
    told = servers_file.read(file)
    if told["state"] != "ready":
        why = f": {told['why']}" if told["why"] else ""
        raise InputError(f"{file}: no service stands there{why}", "Start one: ascent serve MODEL --cluster ADDRESS")
    return replace(remote_service(told["urls"], os.environ.get("ASCENT_API_KEY", "")), servers=file.absolute())


def find_service(name: str) -> ServiceAddress:
    """The service of this name on this machine. Raises InputError when none of this name runs, or one that another
    version of Ascent started."""
    folder = record.services_folder() / name
    found = record.read_any(folder)
    if found is None or not found.alive():
        names = [each.name for _, each in record.read_all() if each is not None and each.alive()]
        raise InputError(
            f"no service named {name!r} is running on this machine",
            f"Running: {', '.join(names)}" if names else "Start one: ascent serve MODEL",
        )
    if isinstance(found, record.OtherVersion):
        raise InputError(found.in_words(), found.mend())
    if found.state == "failed":
        raise InputError(f"service {name} has failed: {found.why}", f"Its logs: {_logs(found)}")
    return from_record(folder, found)


def find_by_urls(urls: Sequence[str]) -> ServiceAddress | None:
    """The service of this machine that has these servers; None when there is none. Raises InputError when another
    version of Ascent started it."""
    wanted = {url.rstrip("/").replace("://localhost:", "://127.0.0.1:") for url in urls}
    for folder, found in record.read_all():
        if found is None or not found.alive():
            continue
        if isinstance(found, record.OtherVersion):
            if wanted <= set(found.urls):
                raise InputError(found.in_words(), found.mend())
        elif wanted == {replica.url for replica in found.replicas}:
            return from_record(folder, found)
    return None


def remote_service(urls: Sequence[str], token: str) -> ServiceAddress:
    """A service on another machine, from its servers' URLs and its API key."""
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"server {url!r}: expected a URL such as http://10.0.0.5:8000")
    if not urls or not token:
        raise InputError("a service on another machine needs the URLs of its servers and its API key")
    return ServiceAddress(name=urls[0], urls=tuple(url.rstrip("/") for url in urls), token=token)


def lost(address: ServiceAddress) -> str | None:
    """Why a service of this machine, or one that the launcher places, won't come back by itself; None while it may."""
    if address.servers is not None:
        told = servers_file.read(address.servers)
        return told["why"] if told["state"] == "failed" else None
    if address.folder is None:
        return None
    found = record.read_any(address.folder)
    if found is None:
        return f"service {address.name} was stopped"
    if isinstance(found, record.OtherVersion):
        return f"{found.in_words()} meanwhile"
    if found.state == "failed":
        return f"service {address.name} failed: {found.why}. Its logs: {_logs(found)}"
    if not found.alive():
        return f"the supervisor of service {address.name} (process {found.pid}) is gone. Its logs: {_logs(found)}"
    return None


def servers_now(address: ServiceAddress) -> dict[str, bool] | None:
    """The URLs of the servers that a service has now, False for those that are drained; None where that is unknown: it
    is on another machine, or gone. Raises OSError when its record can't be read."""
    if address.servers is not None:
        return dict.fromkeys(servers_file.read(address.servers)["urls"], True)
    found = None if address.folder is None else record.read(address.folder)
    return None if found is None else {each.url: each.state != "draining" for each in found.replicas}


def _logs(found: record.ServiceRecord) -> str:
    return ", ".join(replica.log for replica in found.replicas)
