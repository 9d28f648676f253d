"""The machine around the accelerator: memory, disk, limits, containers, device files, network basics."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import socket
from pathlib import Path

from ascent.environment.inventory import Host
from ascent.host.machine_share import memory_left, memory_limit

_NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")
# What the driver puts on a host and a container needs beside the device files: folders and files.
_MOUNTED_FOLDERS = ("usr/local/Ascend/driver/lib64", "usr/local/dcmi")
_MOUNTED_FILES = ("usr/local/Ascend/driver/version.info", "etc/ascend_install.info")
_SHADOWERS = (
    "torch",
    "torch_npu",
    "vllm",
    "vllm_ascend",
    "trl",
    "transformers",
    "accelerate",
    "numpy",
    "triton",
)


def inspect(root: Path = Path("/"), workdir: Path | None = None) -> Host:
    """What the operating system tells. ``root`` is `/`, or the top of a test tree; never raises."""
    workdir = workdir or Path.cwd()
    memory = _meminfo(root)
    nodes = _device_nodes(root)
    return Host(
        system=platform.system(),
        os_name=_os_release(root),
        kernel=platform.release(),
        architecture=platform.machine(),
        python=platform.python_version(),
        container=_in_container(root),
        memory_total=memory.get("MemTotal"),
        memory_available=memory.get("MemAvailable"),
        shared_memory=_total(root / "dev/shm"),
        disk_free=_disk_free(workdir),
        open_files=_open_files(),
        compiler=next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), ""),
        hostname_address=_own_address(root),
        interfaces=_interfaces(root),
        device_nodes=tuple(node.name for node in nodes),
        unreadable_nodes=tuple(node.name for node in nodes if not os.access(node, os.R_OK | os.W_OK)),
        shadowing=_shadowing(workdir),
        node_group=_group_of(nodes[0]) if nodes else "",
        groups=_own_groups(),
        missing_mounts=_missing_mounts(root) if nodes else (),
        device_addresses=_device_addresses(root),
    )


def _meminfo(root: Path) -> dict[str, int]:
    lines = re.findall(r"^(\w+):\s+(\d+) kB", _read(root / "proc/meminfo"), re.M)
    values = {name: int(kilobytes) * 1024 for name, kilobytes in lines}
    limit, left = memory_limit(root), memory_left(root)
    if limit is not None and left is not None and "MemTotal" in values:
        values["MemTotal"] = min(values["MemTotal"], limit)
        values["MemAvailable"] = min(values.get("MemAvailable", left), left)
    return values


def _os_release(root: Path) -> str:
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)', _read(root / "etc/os-release"), re.M)
    return match[1] if match else platform.platform(terse=True)


def _in_container(root: Path) -> bool:
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return True
    return bool(re.search(r"docker|kubepods|containerd|libpod", _read(root / "proc/1/cgroup")))


def _total(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def _disk_free(workdir: Path) -> dict[str, int]:
    places = [workdir, Path(os.environ.get("HF_HOME", str(Path.home() / ".cache"))), Path("/tmp")]
    free: dict[str, int] = {}
    devices: set[int] = set()
    for place in places:
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            device = place.stat().st_dev
            if device not in devices:
                devices.add(device)
                free[str(place)] = shutil.disk_usage(place).free
        except OSError:
            continue
    return free


def _open_files() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 30 if soft == resource.RLIM_INFINITY else soft


def _own_address(root: Path) -> str:
    """Address that /etc/hosts gives this host's name, empty when it gives none. DNS isn't asked: it may hang."""
    name = socket.gethostname()
    for line in _read(root / "etc/hosts").splitlines():
        address, *names = line.partition("#")[0].split() or [""]
        if name in names:
            return address
    return ""


def _interfaces(root: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(entry.name for entry in (root / "sys/class/net").iterdir()))
    except OSError:
        return ()


def _device_nodes(root: Path) -> list[Path]:
    try:
        cards = sorted((root / "dev").glob("davinci[0-9]*"), key=lambda node: (len(node.name), node.name))
        return cards + [root / "dev" / name for name in _NODES if (root / "dev" / name).exists()]
    except OSError:
        return []


def _missing_mounts(root: Path) -> tuple[str, ...]:
    """Driver files that aren't there. Docker makes an empty folder where the source of a mount is missing."""
    folders = [place for place in _MOUNTED_FOLDERS if not _filled(root / place)]
    files = [place for place in _MOUNTED_FILES if not (root / place).is_file()]
    return tuple(f"/{place}" for place in (*folders, *files))


def _filled(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def _group_of(node: Path) -> str:
    try:
        return node.group()
    except (OSError, KeyError, NotImplementedError):  # a group id without a name, or no groups at all
        return ""


def _own_groups() -> tuple[str, ...]:
    try:
        import grp
    except ImportError:  # not on Windows
        return ()
    names = []
    for number in os.getgroups():
        with contextlib.suppress(KeyError):
            names.append(grp.getgrgid(number).gr_name)
    return tuple(sorted(names))


def _device_addresses(root: Path) -> int | None:
    """How many NPUs have an address of their own in hccn.conf; None where there is no such file."""
    text = _read(root / "etc/hccn.conf")
    return len(set(re.findall(r"^address_(\d+)=\S+", text, re.M))) if text else None


def _shadowing(workdir: Path) -> tuple[str, ...]:
    """Folders in the working directory that Python would import in place of the installed package of that name."""
    try:
        return tuple(name for name in _SHADOWERS if (workdir / name).is_dir())
    except OSError:
        return ()


def _read(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            return stream.read(262144)
    except OSError:
        return ""
