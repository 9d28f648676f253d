"""Who else is on a device: services of this user against a new service, and a training against the service it uses.

Devices are compared by their names in the variable of visible devices. A number and a UUID are taken for two devices.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from ascent import devices
from ascent.config import RunConfig
from ascent.errors import InputError
from ascent.rollout.service import record
from ascent.rollout.service.address import ServiceAddress, standing_service
from ascent.rollout.service.settings import ServiceSettings


def refuse_taken_devices(settings: ServiceSettings) -> None:
    """Raise InputError when another living service of this user has a device of a service that is to be started."""
    mine = settings.physical_devices(os.environ)
    for _, found in record.read_all():
        if not isinstance(found, record.ServiceRecord) or not found.alive():
            continue  # a service of another version doesn't say where it is in words of this one
        if found.settings["device_kind"] != settings.device_kind:
            continue
        if both := _in_both(mine, found.devices):
            where = f"{settings.device_kind} device {', '.join(both)}"
            raise InputError(
                f"service {found.name} (process {found.pid}) is on {where} already",
                "Choose others (ascent serve --devices, or rollout.server_devices of a run), or stop that service: "
                f"ascent serve --stop {found.name}. On purpose: ascent serve --force, and an --engine-share for both.",
            )


def shared_devices(address: ServiceAddress, processes: int) -> tuple[int, ...]:
    """The devices of a training (the first `processes` visible ones) on which a standing service of this machine is."""
    found = None if address.folder is None else record.read(address.folder)
    kind = found.settings["device_kind"] if found is not None else "cpu"
    if found is None or kind == "cpu" or kind != devices.kind():
        return ()
    mine = [devices.physical(kind, [index], os.environ)[0] for index in range(min(processes, devices.count()))]
    both = _in_both(mine, found.devices)
    return tuple(index for index, name in enumerate(mine) if name in both)


def devices_of_servers(config: RunConfig, processes: int) -> tuple[int, ...]:
    """The visible devices on which a run's servers are, as indices: its own servers' as it is configured, those of a
    standing service as far as the training is on them too."""
    service = config.rollout.server
    if config.rollout.mode != "server" or service is None:
        return config.server_devices(processes)
    return shared_devices(standing_service(service), processes)


def _in_both(mine: Collection[str], theirs: Collection[str]) -> list[str]:
    return [name for name in mine if name in theirs]
