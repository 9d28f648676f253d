"""What a service is: its engine, how many servers, where they listen, and when to give up."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ascent import devices
from ascent.errors import InputError
from ascent.rollout.engine import EngineSettings
from ascent.rollout.speculation import check_speculation

ADAPTER_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM can reserve


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """`devices` are indices into the visible devices, `tensor_parallel` of them for each replica; empty: all visible
    ones in their order. `transport` is a name of `ascent.tables.TRANSPORTS`. Times in seconds.

    `port` 0 picks free ports, otherwise replica i listens on `port + i`. A server without a sign of life for
    `hung_after` (8 times that while it uses the CPU), or whose running requests make no token for `stalled_after`, or
    whose workers still wait for weights `stuck_after` the trainer gave them up or was gone, is restarted; more than
    `max_restarts` restarts of one server within `restart_window` fail it. A server that the service gives up may finish
    what it samples for `drain_seconds`.
    """

    engine: EngineSettings
    device_kind: str  # "npu", "cuda" or "cpu"
    replicas: int = 1
    tensor_parallel: int = 1
    devices: tuple[int, ...] = ()
    transport: str | None = None
    worker_extension: str | None = None
    adapters: int = 0  # LoRA adapters that trainings may have at once, each its own; 0: none
    adapter_rank: int = 64  # their largest rank
    visible_devices: int = 0  # that the service may be given more of; 0: none, or unknown
    host: str = "127.0.0.1"
    port: int = 0
    gateway: int | None = None  # its port, 0: a free one; None: there is no gateway
    start_timeout: float = 900.0
    hung_after: float = 8.0
    stalled_after: float = 120.0
    stuck_after: float = 10.0
    drain_seconds: float = 300.0
    max_restarts: int = 5
    restart_window: float = 1800.0
    extra_arguments: tuple[str, ...] = ()  # for vLLM's server, as they are

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the servers."""
        return is_loopback(self.host)

    def physical_devices(self, environment: Mapping[str, str]) -> tuple[str, ...]:
        """The names of the servers' devices, as `devices.physical` has them, for a service started in `environment`."""
        indices = self.devices or tuple(range(self.tensor_parallel))
        return devices.physical(self.device_kind, indices, environment)

    def to_json(self) -> dict[str, Any]:
        """Plain data, for `settings.json` and the record."""
        return dataclasses.asdict(self)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def from_json(values: dict[str, Any]) -> ServiceSettings:
    """The settings that `ServiceSettings.to_json` wrote."""
    tuples = {"devices": tuple(values["devices"]), "extra_arguments": tuple(values["extra_arguments"])}
    return ServiceSettings(**{**values, **tuples, "engine": EngineSettings(**values["engine"])})


def check(settings: ServiceSettings, api_key: str | None) -> None:
    """Raise InputError for what can't be served."""
    check_speculation(settings.engine.speculative)
    if settings.replicas < 1 or settings.tensor_parallel < 1:
        raise InputError("a service needs at least one replica, and each at least one device")
    if not settings.loopback and not api_key:
        raise InputError(
            f"--host {settings.host}: other machines could reach the servers, so an API key is needed",
            "Set ASCENT_API_KEY (such as: export ASCENT_API_KEY=$(openssl rand -hex 24)), or leave out --host.",
        )
    if api_key is not None and (len(api_key) < 16 or not api_key.isascii() or any(c.isspace() for c in api_key)):
        raise InputError("the API key must be at least 16 ASCII characters without spaces")
    if settings.adapters < 0 or settings.adapter_rank not in ADAPTER_RANKS:
        raise InputError(
            f"--adapters {settings.adapters} of rank {settings.adapter_rank}: expected a number of adapters, and "
            f"a rank of {', '.join(map(str, ADAPTER_RANKS))}"
        )
    needed = settings.replicas * settings.tensor_parallel
    if settings.devices and len(settings.devices) != needed:
        raise InputError(
            f"{settings.replicas} replicas of {settings.tensor_parallel} devices need {needed} devices, "
            f"but --devices names {len(settings.devices)}"
        )
    if len(set(settings.devices)) != len(settings.devices):
        raise InputError(f"--devices {','.join(map(str, settings.devices))}: a device is named twice")
