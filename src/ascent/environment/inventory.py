"""What a machine has: the plain data that inspection and pasted reports fill and that the checks read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ascent.environment.versions import parse

Accelerator = Literal["npu", "cuda", "cpu", "unknown"]
Part = Literal["toolkit", "kernels", "nnal"]
SmiState = Literal["read", "failed", "missing", "not stated"]


@dataclass(frozen=True)
class Package:
    """An installed distribution. ``name`` is normalised (`torch_npu` -> `torch-npu`)."""

    name: str
    version: str
    source: str = ""
    sure: bool = True


@dataclass(frozen=True)
class CannPart:
    """One CANN install: toolkit, kernels (with the ``chip`` they are for) or NNAL. ``sourced`` None: not known."""

    part: Part
    version: str
    path: str = ""
    sourced: bool | None = None
    chip: str = ""
    sure: bool = True


@dataclass(frozen=True)
class Device:
    """One NPU as the runtime enumerates it. ``index`` counts from 0; ``npu`` and ``chip`` are npu-smi's numbers.

    Memory in MB (MiB, as npu-smi means it): HBM where the chip has it, DDR otherwise.
    """

    index: int
    npu: int
    chip: int
    name: str
    health: str
    physical: int | None = None
    bus: str = ""
    aicore_percent: int | None = None
    memory_used_mb: int | None = None
    memory_total_mb: int | None = None
    memory_kind: Literal["HBM", "DDR", ""] = ""
    power_watts: float | None = None


@dataclass(frozen=True)
class DeviceProcess:
    """A process on an NPU. ``name`` is empty where a container hides it."""

    npu: int
    chip: int
    pid: int
    name: str
    memory_mb: int


@dataclass(frozen=True)
class NpuSmi:
    """What npu-smi says, or why it says nothing (``state``, ``error``). ``unread`` are rows that can't be read."""

    state: SmiState = "not stated"
    driver: str = ""
    devices: tuple[Device, ...] = ()
    processes: tuple[DeviceProcess, ...] = ()
    error: str = ""
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class Host:
    """The machine around the accelerator. Sizes in bytes; None or empty: not known.

    ``node_group`` owns the device files, ``groups`` are this user's. ``missing_mounts`` are files of the
    driver
    that a container should have. ``device_addresses`` counts the NPUs' own network addresses in hccn.conf.
    """

    system: str = ""
    os_name: str = ""
    kernel: str = ""
    architecture: str = ""
    python: str = ""
    python_sure: bool = True
    container: bool | None = None
    memory_total: int | None = None
    memory_available: int | None = None
    shared_memory: int | None = None
    disk_free: Mapping[str, int] = field(default_factory=dict)
    open_files: int | None = None
    compiler: str = ""
    hostname_address: str = ""
    interfaces: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()
    unreadable_nodes: tuple[str, ...] = ()
    shadowing: tuple[str, ...] = ()
    node_group: str = ""
    groups: tuple[str, ...] = ()
    missing_mounts: tuple[str, ...] = ()
    device_addresses: int | None = None


@dataclass(frozen=True)
class Environment:
    """Everything known of a machine. ``origin`` tells whether it was inspected or read from a report."""

    origin: Literal["machine", "report"]
    host: Host = field(default_factory=Host)
    packages: Mapping[str, Package] = field(default_factory=dict)
    cann: tuple[CannPart, ...] = ()
    npu: NpuSmi = field(default_factory=NpuSmi)
    chip: str = ""
    firmware: str = ""
    gpus: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    build_target: str = ""
    torch_cuda: str = ""
    remarks: tuple[str, ...] = ()

    def version(self, name: str) -> str:
        """Version of a package, empty when it isn't there."""
        package = self.packages.get(name)
        return package.version if package else ""

    def sure(self, *names: str) -> bool:
        """Whether all of these packages were read without doubt."""
        return all(self.packages[name].sure for name in names if name in self.packages)

    def part(self, part: Part) -> CannPart | None:
        """The CANN install in use: the sourced one, otherwise the newest."""
        found = [each for each in self.cann if each.part == part]
        found.sort(key=lambda each: (each.sourced is True, _order(each.version)))
        return found[-1] if found else None

    @property
    def cann_version(self) -> str:
        """Version of the CANN toolkit in use, empty when there is none."""
        toolkit = self.part("toolkit")
        return toolkit.version if toolkit else ""

    @property
    def accelerator(self) -> Accelerator:
        """The kind of machine: an Ascend package or card makes it `npu`."""
        if self.npu.devices or self.cann or self.chip or self.npu.state in ("read", "failed"):
            return "npu"
        if self.host.device_nodes or "vllm-ascend" in self.packages:
            return "npu"
        if "torch-npu" in self.packages and not self.software_npu:
            return "npu"
        if self.gpus:
            return "cuda"
        return "cpu" if self.origin == "machine" else "unknown"

    @property
    def software_npu(self) -> bool:
        """Whether torch_npu is a stand-in on host memory, as Ascent's own tests use."""
        package = self.packages.get("torch-npu")
        return package is not None and package.version.endswith("+software")

    @property
    def chips(self) -> tuple[str, ...]:
        """Names of the chips, each once."""
        names = dict.fromkeys(device.name for device in self.npu.devices if device.name)
        return tuple(names) or ((self.chip,) if self.chip else ())

    def as_dict(self) -> dict[str, Any]:
        """The inventory as plain JSON data."""
        plain = {**self.__dict__, "packages": {name: asdict(each) for name, each in self.packages.items()}}
        plain["host"] = {**self.host.__dict__, "disk_free": dict(self.host.disk_free)}
        plain["cann"] = [asdict(each) for each in self.cann]
        plain["npu"] = asdict(self.npu)
        plain["variables"] = dict(self.variables)
        return {**plain, "accelerator": self.accelerator}


def _order(version: str) -> tuple[Any, ...]:
    parsed = parse(version)
    return parsed.key if parsed else ()
