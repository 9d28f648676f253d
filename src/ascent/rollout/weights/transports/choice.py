"""Which transport fits where trainer and servers stand, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ascent.errors import InputError
from ascent.rollout.in_vllm.plugin import SHM_BACKEND
from ascent.rollout.weights.transports.base import Transport
from ascent.rollout.weights.update_api import generation

# rollout.transport -> vLLM's name of the engine that receives
BACKENDS = {"shm": SHM_BACKEND, "hccl": "hccl", "npu_ipc": "npu_ipc", "nccl": "nccl", "ipc": "ipc"}


@dataclass(frozen=True, slots=True)
class Choice:
    """The transport's name (a key of BACKENDS), and the reason for the log."""

    name: str
    reason: str

    @property
    def backend(self) -> str:
        """What vLLM is given as `--weight-transfer-config '{"backend": ...}'`."""
        return BACKENDS[self.name]


def choose(
    device_kind: str,
    *,
    vllm_version: str,
    same_host: bool,
    shares_device: bool = False,
    trainer_processes: int = 1,
    tensor_parallel: int = 1,
    allows_pickled_handles: bool = False,
) -> Choice:
    """The transport for servers on devices of `device_kind`.

    `shares_device`: a server uses a device that the sending trainer process uses too. `allows_pickled_handles`: the
    servers run with VLLM_ALLOW_INSECURE_SERIALIZATION=1. Raises InputError where no transport reaches the servers.
    """
    if device_kind == "cpu":
        return _shared_memory_only(same_host, "the servers run on CPU")
    collective, ipc = {"npu": ("hccl", "npu_ipc"), "cuda": ("nccl", "ipc")}[device_kind]
    if shares_device:
        alone = trainer_processes == 1 and tensor_parallel == 1
        later = device_kind == "npu" and generation(vllm_version).stateful_trainer
        if same_host and alone and allows_pickled_handles and not later:
            return Choice(ipc, f"trainer and server share a device, and a {collective} group has one member a device")
        return _shared_memory_only(
            same_host, f"trainer and server share a device, which a {collective} group doesn't allow"
        )
    if device_kind == "npu" and generation(vllm_version).stateful_trainer:
        return _shared_memory_only(same_host, f"how vLLM {vllm_version} takes weights over HCCL is not known yet")
    return Choice(collective, "trainer and servers have devices of their own: a broadcast from device to devices")


def _shared_memory_only(same_host: bool, why: str) -> Choice:
    if same_host:
        return Choice("shm", f"{why}: shared memory of this machine")
    raise InputError(
        f"weights can't reach servers on another machine: {why}, and shared memory ends with this machine",
        "Run trainer and servers on one machine, or give the servers devices of their own.",
    )


def transport(
    name: str,
    dtype: str,
    device: str,
    *,
    address: str | None = None,
    chunk_bytes: int | None = None,
    timeout: float = 300.0,
) -> Transport:
    """The trainer's side of a transport (a key of BACKENDS).

    `dtype`: the servers'. `device`: the trainer's, with its index. `address`: this machine as the servers reach it
    (hccl, nccl). `chunk_bytes`: how much is sent at once, by default the transport's own measure. Raises InputError for
    an unknown name, WeightSyncError for a transport that this training can't use.
    """
    from ascent.rollout.weights.transports.collective import CollectiveTransport
    from ascent.rollout.weights.transports.device_ipc import IpcTransport
    from ascent.rollout.weights.transports.shm import ShmTransport

    size: dict[str, Any] = {} if chunk_bytes is None else {"chunk_bytes": chunk_bytes}
    if name == "shm":
        return ShmTransport(dtype, timeout=timeout, **size)
    if name in ("hccl", "nccl"):
        return CollectiveTransport(name, dtype, device, address=address, timeout=timeout, **size)
    if name in ("npu_ipc", "ipc"):
        return IpcTransport(name, dtype, device, timeout=timeout, **size)
    raise InputError(f"unknown transport {name!r}", f"Known: {', '.join(BACKENDS)}.")
