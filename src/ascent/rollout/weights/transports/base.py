"""The seam of the transports: what each says of itself, and how it brings a walk over the weights to all servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from packaging.version import Version

from ascent.rollout.weights.control import ControlPlane
from ascent.rollout.weights.update_api import UpdateApi, update_api

if TYPE_CHECKING:
    from torch import Tensor

Named = Iterable[tuple[str, "Tensor"]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a trainer and its servers stand, as far as the choice of a transport depends on it.

    `workers` counts the devices of all servers together. `shares_device`: a server computes on a device on which a
    process of the trainer computes; None: not known. `allows_pickled_handles`: the servers run with
    VLLM_ALLOW_INSECURE_SERIALIZATION=1.
    """

    device_kind: str  # of the servers: "npu", "cuda" or "cpu"
    vllm_version: str
    same_host: bool
    trainer_kind: str | None = None  # of the sending process's device; None: not known
    shares_device: bool | None = False
    trainer_processes: int = 1
    workers: int = 1
    allows_pickled_handles: bool = False


@dataclass(frozen=True, slots=True)
class Reach:
    """What a transport needs. `how` names its way in a few words, for the log."""

    how: str
    device_kinds: tuple[str, ...]  # of the servers
    same_host: bool = False  # it ends with the machine
    devices: Literal["any", "own", "shared"] = "any"  # own: trainer and servers never meet on one; shared: all are one
    pickled_handles: bool = False  # the servers must accept handles of memory as a pickle
    before_vllm: str | None = None  # the first release of vLLM whose interface isn't known

    def misfit(self, place: Place) -> str | None:
        """Why it doesn't fit `place`; None when it fits."""
        if place.device_kind not in self.device_kinds:
            return f"it serves {' and '.join(self.device_kinds)}, and the servers run on {place.device_kind}"
        if self.same_host and not place.same_host:
            return "it ends with this machine"
        if self.devices != "any" and place.trainer_kind not in (None, place.device_kind):
            return f"it needs the trainer on {place.device_kind} too, and it computes on {place.trainer_kind}"
        if self.devices == "own" and place.shares_device:
            return "a server shares a device with the trainer"
        if self.devices == "shared" and place.shares_device is False:
            return "trainer and servers have devices of their own"
        if self.devices == "shared" and (place.trainer_processes > 1 or place.workers > 1):
            return (
                f"it joins one process of the trainer with one worker on the same device, and there are "
                f"{place.trainer_processes} and {place.workers}"
            )
        if self.pickled_handles and not place.allows_pickled_handles:
            return "the servers run without VLLM_ALLOW_INSECURE_SERIALIZATION=1"
        if self.before_vllm is not None and Version(place.vllm_version) >= Version(self.before_vllm):
            return f"it is known for vLLM before {self.before_vllm}, and this is {place.vllm_version}"
        return None


class Transport(Protocol):
    """Brings weights to servers, between `start_weight_update` and `finish_weight_update`, which the caller calls.

    Used by one thread.

    One class in one file of this folder, and one line in `ascent.tables.TRANSPORTS`. All are built alike, from the
    servers' dtype, the trainer's device with its index ("npu:0"), and by keyword `address` (this machine as the servers
    reach it; None: found out), `chunk_bytes` (how much is sent at once; None: the transport's own measure) and
    `timeout` (seconds of one call). Building one raises WeightSyncError where this training can't use it.
    """

    backend: ClassVar[str]  # vLLM's name of the receiving engine, for --weight-transfer-config
    reach: ClassVar[Reach]

    def __init__(
        self, dtype: str, device: str, *, address: str | None, chunk_bytes: int | None, timeout: float
    ) -> None: ...

    def connect(self, replicas: Sequence[ControlPlane], incarnations: Mapping[str, str]) -> Mapping[str, Exception]:
        """Initialise the receiving engines of servers that have none yet. Returns what failed, by the server's url.

        `incarnations`: by url, another text whenever a server was started anew; "" where that isn't known.
        """
        ...

    def send(
        self, replicas: Sequence[ControlPlane], tensors: Named, observe: Callable[[str, Tensor], None]
    ) -> Mapping[str, Exception]:
        """Walk `tensors` once, to its end, and load them into all servers. Returns what failed, by the server's url.

        `observe` is called with each tensor as it is sent: its final dtype and device.
        """
        ...

    def close(self) -> None:
        """Let go of memory and connections."""
        ...


def update_body(info: Mapping[str, Any]) -> dict[str, Any]:
    """The body of `/update_weights`."""
    return {"update_info": dict(info)}


def api_of(replica: ControlPlane) -> UpdateApi:
    """The interface of the vLLM that a server runs."""
    return update_api(replica.vllm_version)
