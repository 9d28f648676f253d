"""`ascent serve --scale NAME N`: another number of replicas for a service that stands.

Whoever asks puts `scale.json` into the service's folder, which only its user can write to. The supervisor takes it up,
and tells in its record what became of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from ascent import devices
from ascent.errors import InputError
from ascent.rollout.service import record
from ascent.rollout.service.address import find_service
from ascent.rollout.service.settings import ServiceSettings

_ORDER = "scale.json"
_TAKEN_UP_SECONDS, _LOOK = 10.0, 0.2


@dataclass(frozen=True, slots=True)
class ScaleOrder:
    """So many replicas, the new ones on `devices` (indices into the service's visible devices; None: free ones)."""

    request: str
    replicas: int
    devices: tuple[int, ...] | None = None


def scale_service(name: str, replicas: int, on: Sequence[int] | None = None) -> None:
    """Change the number of replicas of a service of this machine and wait until it is done, telling on standard error.

    Raises InputError when there is no such service, when it refuses, and when a new server does not start.
    """
    folder = find_service(name).folder
    assert folder is not None
    order = ScaleOrder(secrets.token_hex(8), replicas, None if on is None else tuple(on))
    found = record.read(folder)
    told = {} if found is None else _states(found)
    _put(folder, order)
    until = time.monotonic() + _TAKEN_UP_SECONDS
    while True:
        found = record.read(folder)
        if found is None or not found.alive():
            raise InputError(f"service {name} ended before it had {replicas} replicas", "ascent serve --status")
        change = found.scaling
        if change is not None and change.request == order.request:
            told = _tell_changes(told, _states(found))
            if change.state == "done":
                print(f"service {name}: replicas: {len(found.replicas)}", file=sys.stderr)
                return
            if change.state != "running":
                raise InputError(f"service {name}: {change.why}", "ascent serve --status shows how it is.")
        elif change is not None and change.state == "running":
            until = time.monotonic() + _TAKEN_UP_SECONDS  # another one, which comes first
        elif time.monotonic() > until:
            (folder / _ORDER).unlink(missing_ok=True)
            raise InputError(f"the supervisor of service {name} (process {found.pid}) does not answer")
        time.sleep(_LOOK)


def take_order(folder: Path) -> ScaleOrder | None:
    """The change that is asked for, once; None when there is none. Raises InputError for one that can't be read."""
    path = folder / _ORDER
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    path.unlink()
    try:
        values = json.loads(text)
        chosen = values["devices"]
        return ScaleOrder(
            str(values["request"]), int(values["replicas"]), None if chosen is None else tuple(map(int, chosen))
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a change of the number of replicas ({error!r})") from error


def scaled(settings: ServiceSettings, order: ScaleOrder, taken: Collection[str]) -> ServiceSettings:
    """The settings of the service when the order is carried out. `taken`: the devices of other services, by their names
    on this machine. Raises InputError for what can't be done."""
    if order.replicas < 1:
        raise InputError(
            f"{order.replicas} replicas: a service needs at least one", "ascent serve --stop NAME ends it."
        )
    kept = settings.devices[: order.replicas * settings.tensor_parallel]
    needed = (order.replicas - settings.replicas) * settings.tensor_parallel
    if needed <= 0 or settings.device_kind == "cpu":
        if order.devices:
            raise InputError("devices are named, but no replica needs one")
        return dataclasses.replace(settings, replicas=order.replicas, devices=kept)
    if order.devices is None:
        free = _free(settings, taken)
        if len(free) < needed:
            raise InputError(
                f"{order.replicas - settings.replicas} more replicas need {needed} devices; of the "
                f"{settings.visible_devices} that the service sees {len(free)} are free"
                + (f" ({', '.join(map(str, free))})" if free else "")
            )
        more = free[:needed]
    else:
        more = order.devices
        _check_named(settings, more, needed, taken)
    return dataclasses.replace(settings, replicas=order.replicas, devices=(*kept, *more))


def taken_by_others(device_kind: str, folder: Path) -> frozenset[str]:
    """The devices of this user's other services, by their names on this machine."""
    others = [found for each, found in record.read_all() if each != folder]
    services = [found for found in others if isinstance(found, record.ServiceRecord) and found.alive()]
    same = [found for found in services if found.settings["device_kind"] == device_kind]
    return frozenset(name for found in same for name in found.devices)


def _free(settings: ServiceSettings, taken: Collection[str]) -> tuple[int, ...]:
    others = (index for index in range(settings.visible_devices) if index not in settings.devices)
    return tuple(index for index in others if _name(settings, index) not in taken)


def _check_named(settings: ServiceSettings, named: Sequence[int], needed: int, taken: Collection[str]) -> None:
    if len(set(named)) != needed or len(named) != needed:
        raise InputError(f"{needed} different devices are needed for the new replicas, {len(named)} are named")
    for index in named:
        if settings.visible_devices and not 0 <= index < settings.visible_devices:
            raise InputError(f"device {index}: the service sees {settings.visible_devices} devices, from 0 on")
        if index in settings.devices or _name(settings, index) in taken:
            raise InputError(f"device {index} is taken, by this service or by another one")


def _name(settings: ServiceSettings, index: int) -> str:
    return devices.physical(settings.device_kind, [index], os.environ)[0]


def _put(folder: Path, order: ScaleOrder) -> None:
    draft = folder / f".{_ORDER}.{order.request}"
    record.write_private(draft, json.dumps(dataclasses.asdict(order)))
    try:
        os.link(draft, folder / _ORDER)  # unlike a rename it fails where there is one
    except FileExistsError:
        raise InputError(f"somebody else is just scaling service {folder.name}", "Try again in a moment.") from None
    finally:
        draft.unlink()


def _states(found: record.ServiceRecord) -> dict[str, str]:
    return {replica.url: replica.state for replica in found.replicas}


def _tell_changes(before: dict[str, str], now: dict[str, str]) -> dict[str, str]:
    """Tell what is otherwise than before; what is so now."""
    for url in {**before, **now}:
        state = now.get(url, "gone")
        if state != before.get(url):
            print(f"  {url} {state}", file=sys.stderr)
    return now
